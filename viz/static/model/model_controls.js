/** The controls of the model view: the order of the heads, and the pattern that is marked. */

import { element } from "../draw/dom.js";
import { STATISTICS } from "./model_statistics.js";

const PATTERNS = STATISTICS.filter(({ mark }) => mark !== null);

/**
 * @param {import("../frame/state.js").Store} store
 * @param {import("./model_data.js").Measures} measures
 */
export function createModelControls(store, measures) {
  const choices = [["", "as in the model"], ...STATISTICS.map(({ id, label }) => [id, label])];
  const options = choices.map(([value, label]) => element("option", { value }, [label]));
  const order = element("select", { "aria-label": "Order of the heads" }, options);
  order.addEventListener("change", () => store.set({ sort: order.value }));
  const buttons = [["", "none", "No heads marked"], ...PATTERNS.map(({ id, label, says }) => [id, label, `${label}: ${says}`])].map(
    ([id, label, title]) => {
      const button = element("button", { type: "button", title }, [label]);
      button.dataset.mark = id;
      button.addEventListener("click", () => store.set({ mark: id }));
      return button;
    },
  );
  const found = element("output", { class: "model-found" });
  const root = element("div", { class: "model-controls" }, [
    group("Order by", [element("div", { class: "stepper" }, [order])]),
    group("Mark heads that look at", [element("div", { class: "segments" }, buttons), found]),
  ]);
  return {
    root,
    /** @param {{pattern: import("./model_statistics.js").Statistic | null, has: (place: number) => boolean}} marks */
    update({ pattern, has }) {
      const { sort, mark } = store.get();
      order.value = sort;
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.mark === mark));
      found.textContent = textOf(mark, sort, measures, pattern && has);
    },
  };
}

/**
 * @param {string} mark
 * @param {string} sort
 * @param {import("./model_data.js").Measures} measures
 * @param {((place: number) => boolean) | null} has
 */
function textOf(mark, sort, measures, has) {
  if (!mark && !sort) return "";
  if (!measures.possible) return "The page does not hold the weights to measure this.";
  if (!measures.finished) return "measuring…";
  if (!has) return "";
  let count = 0;
  for (let place = 0; place < measures.total; place += 1) count += Number(has(place));
  return `${count} of ${measures.total}`;
}

/**
 * @param {string} name
 * @param {Node[]} children
 */
function group(name, children) {
  const label = element("span", { class: "label", "aria-hidden": "true" }, [name]);
  const row = element("div", { class: "row" }, children);
  return element("div", { class: "group", role: "group", "aria-label": name }, [label, row]);
}
