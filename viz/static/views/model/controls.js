/** The controls of the model view: the order of the heads, and the pattern that is marked. */

import { STATISTICS } from "../../core/data/statistics.js";
import { group, menu, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";

const PATTERNS = STATISTICS.filter(({ mark }) => mark !== null);

/**
 * @param {import("../../core/state/state.js").Store} store
 * @param {import("../../core/data/measures.js").Measures} measures
 */
export function createModelControls(store, measures) {
  const options = STATISTICS.map(({ id, label }) => /** @type {[string, string]} */ ([id, label]));
  const order = menu("Order of the heads", [["", "as in the model"], ...options], (sort) => store.set({ sort }));
  const patterns = PATTERNS.map(({ id, label, says }) => ({ id, label, title: `${label}: ${says}` }));
  const marks = segments([{ id: "", label: "none", title: "No heads marked" }, ...patterns], (mark) => store.set({ mark }));
  const found = element("output", { class: "model-found" });
  const root = element("div", { class: "model-controls" }, [
    group("Order by", [element("div", { class: "stepper" }, [order])]),
    group("Mark heads that look at", [marks.root, found]),
  ]);
  return {
    root,
    /** @param {{pattern: import("../../core/data/statistics.js").Statistic | null, has: (place: number) => boolean}} marks */
    update({ pattern, has }) {
      const { sort, mark } = store.get();
      order.value = sort;
      marks.show(mark);
      found.textContent = textOf(mark, sort, measures, pattern && has);
    },
  };
}

/**
 * @param {string} mark
 * @param {string} sort
 * @param {import("../../core/data/measures.js").Measures} measures
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

