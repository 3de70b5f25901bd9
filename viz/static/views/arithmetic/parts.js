/**
 * The steps of the arithmetic view as elements: words, formulas, numbers.
 *
 * @import { Tokens } from "../../core/data/data.js"
 */

import { element, tokenChip } from "../../core/draw/dom.js";
import { written } from "../../core/text/numbers.js";

/**
 * A formula: letters in italics where they stand between underscores, numbers as they are.
 *
 * @param {(string | Node)[]} parts
 */
export function formula(...parts) {
  const shown = parts.map((part) => (typeof part === "string" ? letters(part) : [part]));
  return element("p", { class: "sum-formula" }, shown.flat());
}

/**
 * @param {string} text
 * @returns {(string | Node)[]}
 */
function letters(text) {
  return text.split("_").map((part, i) => (i % 2 ? element("var", {}, [part]) : part));
}

/** @param {(string | Node)[]} parts */
export function words(...parts) {
  return element("p", { class: "sum-words" }, parts);
}

/**
 * @param {string} id
 * @param {string} title
 * @param {(Node | string)[]} children
 */
export function step(id, title, children) {
  const made = element("li", { class: "sum-step" }, [element("h2", {}, [title]), ...children]);
  made.dataset.step = id;
  return made;
}

/**
 * A table in columns beside one another, so that all its numbers are in sight at once.
 *
 * @param {string} id
 * @param {string[]} names
 * @param {number[]} order  the rows
 * @param {(row: number) => number[]} numbersOf
 */
export function numberTables(id, names, order, numbersOf) {
  const rows = Math.max(8, Math.ceil(order.length / 4));
  const tables = [];
  for (let from = 0; from < order.length; from += rows) {
    const body = order.slice(from, from + rows).map((row) => {
      const made = element("tr", {}, [
        element("th", { scope: "row" }, [String(row)]),
        ...numbersOf(row).map((value) => element("td", { "data-value": String(value) }, [written(value)])),
      ]);
      made.dataset.row = String(row);
      return made;
    });
    const head = element("tr", {}, ["dim.", ...names].map((name) => element("th", { scope: "col" }, [name])));
    tables.push(element("table", {}, [element("thead", {}, [head]), element("tbody", {}, body)]));
  }
  const made = element("div", { class: "sum-tables" }, tables);
  made.dataset.table = id;
  return made;
}

/**
 * A token in a sentence.
 *
 * @param {Tokens} tokens
 * @param {number} index
 * @param {number} [limit]
 */
export function named(tokens, index, limit = 40) {
  return element("strong", { class: "sum-token" }, [tokenChip(tokens, index, limit)]);
}
