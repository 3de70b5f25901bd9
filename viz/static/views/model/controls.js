/** The controls of the model view: the order of the heads, and which heads are marked. */

import { STATISTICS } from "../../core/data/statistics.js";
import { group, menu, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";

const PATTERNS = STATISTICS.filter(({ mark }) => mark !== null);

/**
 * @param {import("../../core/state/state.js").Store} store
 * @param {import("../../core/data/measures.js").Measures} measures
 * @param {import("../../core/data/named.js").Named[]} named
 */
export function createModelControls(store, measures, named) {
  const options = STATISTICS.map(({ id, label }) => /** @type {[string, string]} */ ([id, label]));
  const order = menu("Order of the heads", [["", "as in the model"], ...options], (sort) => store.set({ sort }));
  const patterns = PATTERNS.map(({ id, label, says }) => ({ id, label, title: `${label}: ${says}` }));
  const marks = segments([{ id: "", label: "none", title: "No heads marked" }, ...patterns], (mark) => store.set({ mark }));
  const known = named.map(({ name, label, says }) => ({ id: `named.${name}`, label, title: says && `Heads that look at ${says}, over many texts` }));
  const names = segments(known, (mark) => store.set({ mark: store.get().mark === mark ? "" : mark }));
  const [found, foundNamed] = [0, 1].map(() => element("output", { class: "model-found" }));
  const root = element("div", { class: "model-controls" }, [
    group("Order by", [element("div", { class: "stepper" }, [order])]),
    group("Mark heads that look at", [marks.root, found]),
    ...(known.length ? [group("Mark heads known for", [names.root, foundNamed])] : []),
  ]);
  return {
    root,
    /** @param {import("./paint.js").Marks} heads */
    update({ any, has }) {
      const { sort, mark } = store.get();
      order.value = sort;
      marks.show(mark);
      names.show(mark);
      const ofNamed = known.some(({ id }) => id === mark);
      const count = any ? countOf(measures.total, has) : textOf(mark, sort, measures);
      found.textContent = ofNamed ? "" : count;
      foundNamed.textContent = ofNamed ? count : "";
    },
  };
}

/**
 * @param {number} total
 * @param {(place: number) => boolean} has
 */
function countOf(total, has) {
  let count = 0;
  for (let place = 0; place < total; place += 1) count += Number(has(place));
  return `${count} of ${total}`;
}

/**
 * @param {string} mark
 * @param {string} sort
 * @param {import("../../core/data/measures.js").Measures} measures
 */
function textOf(mark, sort, measures) {
  if (!mark && !sort) return "";
  if (!measures.possible) return "The page does not hold the weights to measure this.";
  return measures.finished ? "" : "measuring…";
}
