/**
 * The largest parts of a score: from the model where there is one, else those that the page holds (viz/reasons.py).
 *
 * @import { Example, Vectors } from "./example.js"
 *
 * @typedef {object} Writer  of a part of a query or key
 * @property {string} label
 * @property {{layer: number, head: number} | null} head  the head that wrote it
 *
 * @typedef {(() => Promise<Part[]>) | null} Open  what it is the sum of, the largest first, maybe not all; null: an end, or not known
 *
 * @typedef {Writer & {token?: number, score: number, open: Open}} Part  of what a head wrote: what it read at a token, or what had
 *   been written there
 *
 * @typedef {Writer & {numbers: ArrayLike<number> | null, open: Open}} Side  of a pair: a part of the query or key, null where
 *   the page has not its numbers
 *
 * @typedef {object} Pair
 * @property {Side} query
 * @property {Side} key
 * @property {number} score
 * @property {boolean} [same]  for every key
 *
 * @typedef {object} Asked
 * @property {number} layer
 * @property {number} head
 * @property {number} query
 * @property {number} key
 *
 * @typedef {object} Reason
 * @property {Pair[]} pairs  that are not the same for every key, the largest first, maybe not all
 * @property {number} same  the sum of those that are: the softmax cancels it
 * @property {number} sum  of all pairs
 */

import { fromHalf } from "./coded.js";
import { bytesOf, unpack } from "./data.js";
import { once } from "./example.js";

/** Fields of a weight before its pairs, and of a pair. */
const [FIRST, EACH] = [5, 3];

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
  const fields = await once(example.made, name, async () => new Uint16Array((await bytesOf(entry, example.blocks)).buffer));
  const [nFields, nWeights] = entry.shape;
  const at = (/** @type {number} */ field, /** @type {number} */ weight) => fields[field * nWeights + weight];
  const place = example.layers.indexOf(layer) * example.heads.length + example.heads.indexOf(head);
  const found = Array.from({ length: nWeights }, (_, i) => i).find((i) => at(0, i) === place && at(1, i) === query && at(2, i) === key);
  if (found === undefined) return null;
  const half = (/** @type {number} */ field) => fromHalf(Uint16Array.of(at(field, found)))[0];
  const below = name === "why" ? await once(example.made, "below", () => belowOf(example)) : null;
  const pairs = Array.from({ length: (nFields - FIRST) / EACH }, (_, pair) => {
    const first = FIRST + EACH * pair;
    const side = (/** @type {0 | 1} */ which) => ({ ...writerOf(why.components[at(first + which, found)]), ...(below ? below(found, pair, which) : { numbers: null, open: null }) });
    return { query: side(0), key: side(1), score: half(first + 2) };
  });
  return { pairs: pairs.filter(({ score }) => score), same: half(4), sum: half(3) };
}

/** What is behind a side of a pair of a weight, where the page holds it. @param {Example} example */
async function belowOf(example) {
  const [read, vectors] = ["why read", "why vectors"].map((name) => example.entry(name, null));
  if (!read || !vectors) return null;
  const weights = JSON.parse(new TextDecoder().decode(await bytesOf(read, example.blocks)));
  const [numbers, width] = [await unpack(vectors, example.blocks), vectors.shape[1]];
  return (/** @type {number} */ weight, /** @type {number} */ pair, /** @type {0 | 1} */ side) => {
    const [vector, parts] = weights[weight][pair].slice(2 * side);
    return { numbers: numbers.subarray(vector * width, (vector + 1) * width), open: opens(parts) };
  };
}

/** Parts, the largest first, as the page holds them: a token's place or a label, a number, its own parts. @param {[number | string, number, any[]][]} parts @returns {Open} */
function opens(parts) {
  return parts.length ? async () => parts.sort(([, one], [, other]) => Math.abs(other) - Math.abs(one)).map(([name, score, own]) => ({ ...(typeof name === "number" ? { label: "", head: null, token: name } : writerOf(name)), score, open: opens(own) })) : null;
}

/** @param {string} label @returns {Writer} */
function writerOf(label) {
  const found = /^head (\d+)-(\d+)$/.exec(label);
  return { label, head: found && { layer: Number(found[1]), head: Number(found[2]) } };
}
