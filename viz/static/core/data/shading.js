/**
 * What the text view shades tokens by. No drawing here, no document.
 *
 * @typedef {"received" | "from" | "to" | "relevance"} Measure
 *
 * @typedef {object} Relevance  a number a token, made elsewhere
 * @property {string} name
 * @property {ArrayLike<number>} values
 * @property {number | null} of  the token whose output they are about, if it is one's
 * @property {boolean} choice  another one can be chosen
 *
 * @typedef {object} Shading
 * @property {Float64Array} values  of each token of the shaded text
 * @property {number} scale  the size of the number that has the strongest shade
 * @property {boolean} above  some token's number is beyond the scale
 *
 * @import { Shown, Side } from "./attention.js"
 * @import { Example, Layer } from "./example.js"
 */

import { weightOf } from "./attention.js";

/** @type {{id: Measure, label: string, title: string}[]} */
export const MEASURES = [
  { id: "received", label: "received", title: "How much each token is looked at, the mean over all that look" },
  { id: "from", label: "where it looks", title: "How much a chosen token looks at each" },
  { id: "to", label: "who looks at it", title: "How much each token looks at a chosen one" },
  { id: "relevance", label: "relevance", title: "How much each token counts for the output" },
];

const WEIGHTS = Float64Array.from({ length: 256 }, (_, code) => weightOf(code));

/** The side whose tokens a measure shades. @param {Measure} measure @returns {Side} */
export function shadedSide(measure) {
  return measure === "to" || measure === "relevance" ? "query" : "key";
}

/**
 * The mean attention that each key gets from the queries that take part.
 *
 * @param {Layer} layer
 * @param {number[]} heads  places in the head axis
 * @param {Shown} shown
 */
export function received({ codes, nQueries, nKeys }, heads, shown) {
  const sums = new Float64Array(nKeys);
  let looking = 0;
  for (let query = 0; query < nQueries; query += 1) {
    if (!shown.query[query]) continue;
    looking += 1;
    for (const head of heads) {
      const row = (head * nQueries + query) * nKeys;
      for (let key = 0; key < nKeys; key += 1) sums[key] += WEIGHTS[codes[row + key]];
    }
  }
  const count = Math.max(looking * heads.length, 1);
  return sums.map((sum, key) => (shown.key[key] ? sum / count : 0));
}

/**
 * Numbers with what the strongest shade stands for: the largest of an ordinary token, since the
 * special ones often get most of all attention and would leave the words pale.
 *
 * @param {Float64Array} values
 * @param {number[]} special
 * @returns {Shading}
 */
export function shadingOf(values, special) {
  const largest = (/** @type {(i: number) => boolean} */ counts) =>
    values.reduce((most, value, i) => (counts(i) ? Math.max(most, Math.abs(value)) : most), 0);
  const all = largest(() => true);
  const scale = largest((i) => !special[i]) || all;
  return { values, scale, above: all > scale };
}

/**
 * @param {Example} example
 * @param {number | null} [query]  the token whose output is asked for
 * @returns {Relevance | null}
 */
export function relevanceOf({ header: { relevance } }, query = null) {
  if (!relevance) return null;
  const { name, of, rows, values } = relevance;
  if (values) return { name, values, of, choice: false };
  const row = query ?? of ?? 0;
  return { name, values: rows?.[row] ?? [], of: row, choice: true };
}
