/**
 * The largest parts of a score: from the model where there is one, else those that the page holds (viz/reasons.py).
 *
 * @import { Example, Vectors } from "./example.js"
 *
 * @typedef {object} Writer  of a part of a query or key
 * @property {string} label
 * @property {{layer: number, head: number} | null} head  the head that wrote it
 *
 * @typedef {object} Pair
 * @property {Writer} query
 * @property {Writer} key
 * @property {number} score
 *
 * @typedef {object} Asked
 * @property {number} layer
 * @property {number} head
 * @property {number} query
 * @property {number} key
 *
 * @typedef {object} Reason
 * @property {Pair[]} pairs  the largest first, maybe not all
 * @property {number} sum  of all pairs
 */

import { fromHalf } from "./coded.js";
import { bytesOf } from "./data.js";

/** Fields of a weight before its pairs, and of a pair. */
const [FIRST, EACH] = [4, 3];

/**
 * @param {Example} example
 * @param {Vectors} vectors  of the head
 * @param {Asked} asked
 * @param {boolean} features  they stand in the place of what they are parts of
 * @returns {Promise<Reason | null>}  null: not on the page
 */
export function reasonOf(example, vectors, asked, features) {
  return example.source ? example.source.reason(example.tokens, vectors, asked, features) : heldReason(example, asked, features ? "why features" : "why");
}

/** Where the features of a page stand, if it has some: a quantity and its layer. @param {Example} example */
export function featuresOf({ source, header }) {
  return (source ? source.shape.features : header.why?.features) ?? null;
}

/** @param {Example} example @param {Asked} asked @param {"why" | "why features"} name @returns {Promise<Reason | null>} */
async function heldReason(example, { layer, head, query, key }, name) {
  const { why } = example.header;
  const entry = example.entry(name, null);
  if (!why || !entry) return null;
  const fields = await example.once(name, async () => new Uint16Array((await bytesOf(entry, example.blocks)).buffer));
  const [nFields, nWeights] = entry.shape;
  const at = (/** @type {number} */ field, /** @type {number} */ weight) => fields[field * nWeights + weight];
  const place = example.layers.indexOf(layer) * example.heads.length + example.heads.indexOf(head);
  const found = Array.from({ length: nWeights }, (_, i) => i).find((i) => at(0, i) === place && at(1, i) === query && at(2, i) === key);
  if (found === undefined) return null;
  const half = (/** @type {number} */ field) => fromHalf(Uint16Array.of(at(field, found)))[0];
  const writer = (/** @type {number} */ field) => writerOf(why.components[at(field, found)]);
  const pairs = Array.from({ length: (nFields - FIRST) / EACH }, (_, i) => FIRST + EACH * i).map((field) => ({ query: writer(field), key: writer(field + 1), score: half(field + 2) }));
  return { pairs: pairs.filter(({ score }) => score), sum: half(3) };
}

/** @param {string} label @returns {Writer} */
function writerOf(label) {
  const found = /^head (\d+)-(\d+)$/.exec(label);
  return { label, head: found && { layer: Number(found[1]), head: Number(found[2]) } };
}
