/**
 * Heads that somebody named before the page was made, over many texts: what `patterns` gave.
 *
 * @typedef {object} Named  one pattern
 * @property {string} name
 * @property {string} label
 * @property {string} says  what its heads look at; may be empty
 * @property {[number, number, number | null][]} heads  layer, head, and score if there is one
 */

/** Before the name of such a pattern in the state, which also has those that the page measures. */
const PREFIX = "named.";

/** @param {import("./example.js").Example} example */
export function namedMarks({ header }) {
  return (header.patterns ?? []).map(({ name }) => PREFIX + name);
}

/**
 * The score of each head that a mark of the state names, by place; null for another mark.
 *
 * @param {import("./example.js").Example} example
 * @param {string} mark
 * @returns {Map<number, number> | null}
 */
export function headsNamed({ header, layers, heads }, mark) {
  const found = (header.patterns ?? []).find(({ name }) => PREFIX + name === mark);
  if (!found) return null;
  const places = new Map();
  for (const [layer, head, score] of found.heads) {
    const [row, column] = [layers.indexOf(layer), heads.indexOf(head)];
    if (row >= 0 && column >= 0) places.set(row * heads.length + column, score ?? NaN);
  }
  return places;
}
