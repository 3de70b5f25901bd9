/**
 * A number worked out: steps, each a sum of named terms, lines of a formula, or both. No document here.
 *
 * @typedef {Partial<State>} Way  where a term is worked out itself
 *
 * @typedef {object} Term
 * @property {string} name
 * @property {number[]} factors  that it is the product of; none: a number as it is
 * @property {number} value
 * @property {Way} [to]
 *
 * @typedef {object} Step
 * @property {string} id
 * @property {string} title
 * @property {string} says
 * @property {{factors: string[], terms: Term[]} | null} sum
 * @property {(string | number)[][]} lines  letters in italics stand between underscores
 * @property {number} value  what it comes to
 *
 * @import { State } from "../../core/state/state.js"
 */

import { written } from "../../core/text/numbers.js";

/**
 * A step that is a sum: its last line says what it comes to.
 *
 * @param {string} id
 * @param {string} title
 * @param {string} says
 * @param {Term[]} terms
 * @param {string[]} [factors]  names of the factors of a product
 * @returns {Step}
 */
export function sumStep(id, title, says, terms, factors = []) {
  return { id, title, says, sum: { factors, terms }, lines: [], value: total(terms.map(({ value }) => value)) };
}

/**
 * @param {string} id
 * @param {string} title
 * @param {string} says
 * @param {(string | number)[][]} lines
 * @param {number} value
 * @returns {Step}
 */
export function lineStep(id, title, says, lines, value) {
  return { id, title, says, sum: null, lines, value };
}

/** A number squeezed into −cap to cap. @param {string} what @param {number} value @param {number} cap */
export function capStep(what, value, cap) {
  const [most, capped] = [written(cap, 0), cap * Math.tanh(value / cap)];
  const says = `${what.replace(/^./, (first) => first.toUpperCase())}s are squeezed into −${most} to ${most}: small ones stay nearly as they are, none grows beyond.`;
  return lineStep("cap", "Soft cap", says, [[`_capped ${what}_ = ${most} × tanh(`, value, ` / ${most}) = `, capped]], capped);
}

/** @param {Iterable<number>} numbers */
export function total(numbers) {
  let sum = 0;
  for (const number of numbers) sum += number;
  return sum;
}

/**
 * The largest terms by size, and the rest of them added up.
 *
 * @param {Term[]} terms
 * @param {number} most  all are shown where there are hardly more
 * @returns {{shown: Term[], rest: {count: number, value: number} | null}}
 */
export function largest(terms, most) {
  if (terms.length <= most + 2) return { shown: terms, rest: null };
  const sorted = [...terms].sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const hidden = sorted.slice(most);
  return { shown: sorted.slice(0, most), rest: { count: hidden.length, value: total(hidden.map(({ value }) => value)) } };
}

/**
 * Terms x_i · w_i.
 *
 * @param {ArrayLike<number>} x
 * @param {ArrayLike<number>} w
 * @param {(i: number) => string} name
 * @param {(i: number) => Way} [way]
 * @returns {Term[]}
 */
export function products(x, w, name, way) {
  return Array.from(x, (value, i) => ({ name: name(i), factors: [value, w[i]], value: value * w[i], ...(way && { to: way(i) }) }));
}

/** @param {number} i */
export function dimensionName(i) {
  return `dimension ${i}`;
}
