/**
 * Attention as a model computes it: scaled dot products, soft cap, mask, softmax.
 *
 * @import { Tokens } from "./data.js"
 * @import { Example, Vectors } from "./example.js"
 */

/**
 * The keys that a query sees: from the first one on, up to before the end.
 *
 * @param {Pick<Vectors, "nKeys" | "window">} vectors
 * @param {boolean} causal
 * @param {number} query
 */
export function seenOf({ nKeys, window }, causal, query) {
  const [before, after] = window ?? [Infinity, Infinity];
  return { first: Math.max(0, query - before), end: Math.min(nKeys, query + 1 + (causal ? 0 : after)) };
}

/**
 * A score as the softmax gets it: squeezed into -cap to cap, where the model does that.
 *
 * @param {number} score
 * @param {number | null} [cap]
 */
export function cappedScore(score, cap) {
  return cap ? cap * Math.tanh(score / cap) : score;
}

/**
 * scale * query . key of one query with the keys that it sees, or with all.
 *
 * @param {Vectors} vectors
 * @param {number} query
 * @param {{first: number, end: number}} [seen]
 * @param {Float64Array} [scores]  to be filled
 */
export function scoresOf({ query: queries, key: keys, width, scale, nKeys }, query, { first, end } = { first: 0, end: nKeys }, scores = new Float64Array(nKeys)) {
  timesRows(keys, new Float64Array(vectorOf(queries, query, width)), first, end, scores);
  for (let key = first; key < end; key += 1) scores[key] *= scale;
  return scores;
}

/** The weights of one head, (query, key). @param {Vectors} vectors @param {boolean} causal @returns {Float32Array} */
export function attend(vectors, causal) {
  const { nQueries, nKeys, softCap } = vectors;
  const probs = new Float32Array(nQueries * nKeys);
  const scores = new Float64Array(nKeys);
  for (let query = 0; query < nQueries; query += 1) {
    const seen = seenOf(vectors, causal, query);
    scoresOf(vectors, query, seen, scores);
    if (softCap) for (let key = seen.first; key < seen.end; key += 1) scores[key] = cappedScore(scores[key], softCap);
    fillSoftmax(scores, seen, probs, query * nKeys);
  }
  return probs;
}

/** exp(score) / their sum. @param {ArrayLike<number>} scores */
export function softmax(scores) {
  const weights = new Float64Array(scores.length);
  fillSoftmax(Float64Array.from(scores), { first: 0, end: scores.length }, weights, 0);
  return weights;
}

/**
 * exp(score - largest) / their sum over the keys that are seen.
 *
 * @param {Float64Array} scores  changed
 * @param {{first: number, end: number}} seen
 * @param {Float32Array | Float64Array} weights
 * @param {number} from  where they begin
 */
export function fillSoftmax(scores, { first, end }, weights, from) {
  let largest = -Infinity;
  for (let key = first; key < end; key += 1) if (scores[key] > largest) largest = scores[key];
  let sum = 0;
  for (let key = first; key < end; key += 1) sum += scores[key] = Math.exp(scores[key] - largest);
  for (let key = first; key < end; key += 1) weights[from + key] = scores[key] / sum;
}

/**
 * One attention weight, step by step, in double precision. No document here.
 *
 * @typedef {object} Row  all keys of one query
 * @property {number} query
 * @property {number} first  the first key that is not masked
 * @property {number} end  the first one after it that is masked again
 * @property {Float64Array} scores  scale * query . key, the masked ones too
 * @property {Float64Array} capped  what the softmax is taken of: the same, after the soft cap of a model that has one
 * @property {number} strongest  the key with the largest score that is not masked
 * @property {Float64Array} exps  exp(capped - largest capped); 0 where masked
 * @property {number} denominator  their sum
 * @property {Float64Array} weights
 */

const CONTENT = /[\p{L}\p{N}]/u;

/**
 * The last token that is a word or part of one; without any, the last that is not a mark of structure.
 *
 * @param {Tokens} tokens
 */
export function usualQuery({ text, special }) {
  const places = Array.from(text.keys()).reverse();
  const plain = places.filter((i) => !special[i]);
  return plain.find((i) => CONTENT.test(text[i].slice(0, 200))) ?? plain[0] ?? places[0];
}

/** @param {Vectors} vectors @param {boolean} causal @param {number} query @returns {Row} */
export function rowOf(vectors, causal, query) {
  const { first, end } = seenOf(vectors, causal, query);
  const scores = scoresOf(vectors, query);
  const capped = vectors.softCap ? scores.map((score) => cappedScore(score, vectors.softCap)) : scores;
  const weights = new Float64Array(scores.length);
  fillSoftmax(capped.slice(), { first, end }, weights, 0);
  let strongest = first;
  for (let key = first + 1; key < end; key += 1) if (scores[key] > scores[strongest]) strongest = key;
  const exps = capped.map((score, key) => (key >= first && key < end ? Math.exp(score - capped[strongest]) : 0));
  const denominator = exps.reduce((sum, value) => sum + value, 0);
  return { query, first, end, scores, capped, strongest, exps, denominator, weights };
}

/** True where the query of a row may look at a key. @param {Pick<Row, "first" | "end">} row @param {number} key */
export function sees({ first, end }, key) {
  return key >= first && key < end;
}

/** Rows that a page shows at once, and how far a key may lie from a query to be seen beside it. */
const IN_SIGHT = 24;
const NEAR = 8;

/** @type {WeakMap<Vectors, number>} */
const OPENING = new WeakMap();

/**
 * The token to begin with: of a text that is in sight as a whole the usual one; of a longer text the
 * one of its first tokens that looks most at one near it, so that both are in sight; one that looks
 * most of all there goes before the others.
 *
 * @param {Example} example
 * @param {Vectors} vectors
 */
function openingQuery({ tokens, keyTokens, causal }, vectors) {
  if (tokens.text.length <= IN_SIGHT || keyTokens !== tokens) return usualQuery(tokens);
  const known = OPENING.get(vectors);
  if (known !== undefined) return known;
  let [best, most] = [usualQuery(tokens), -1];
  for (let query = 0; query < IN_SIGHT; query += 1) {
    if (tokens.special[query] || !CONTENT.test(tokens.text[query].slice(0, 200))) continue;
    const { weights, strongest } = rowOf(vectors, causal, query);
    for (let key = Math.max(0, query - NEAR); key < Math.min(query + NEAR, IN_SIGHT); key += 1) {
      const rank = weights[key] + Number(key === strongest);
      if (key !== query && rank > most) [best, most] = [query, rank];
    }
  }
  OPENING.set(vectors, best);
  return best;
}

/**
 * The query and the key to show: those of the state, else the ones to begin with.
 *
 * @param {Example} example
 * @param {Vectors} vectors
 * @param {{query: number | null, key: number | null}} state
 * @returns {{row: Row, key: number}}
 */
export function pairOf(example, vectors, { query, key }) {
  const row = rowOf(vectors, example.causal, query ?? openingQuery(example, vectors));
  return { row, key: key ?? row.strongest };
}

/**
 * The numbers of one token.
 *
 * @param {Float32Array} numbers  (position, width)
 * @param {number} position
 * @param {number} width
 */
export function vectorOf(numbers, position, width) {
  return numbers.subarray(position * width, (position + 1) * width);
}

/**
 * query_i * key_i for each dimension i.
 *
 * @param {Vectors} vectors
 * @param {number} query
 * @param {number} key
 * @returns {Float64Array}
 */
export function productsOf({ query: queries, key: keys, width }, query, key) {
  const q = vectorOf(queries, query, width);
  const k = vectorOf(keys, key, width);
  return Float64Array.from(q, (value, i) => value * k[i]);
}

/**
 * Why a head's numbers cannot be shown, for a person to read.
 *
 * @param {Example} example
 * @param {number} layer
 * @param {number} head
 */
export function whyAbsent({ header: { arrays } }, layer, head) {
  const there = arrays.filter(({ quantity }) => quantity === "query");
  const names = there.slice(0, 6).map((entry) =>
    entry.head === null ? `layer ${entry.layer}` : `layer ${entry.layer}, head ${entry.head}`,
  );
  const rest = there.length > names.length ? " and more" : "";
  const known = names.length ? ` They are here for ${names.join("; ")}${rest}.` : "";
  return `This page was made without query and key of layer ${layer}, head ${head}.${known}`;
}

/**
 * x times rows of a matrix (out, in), summed in double precision.
 *
 * @param {ArrayLike<number>} matrix
 * @param {ArrayLike<number>} x
 * @param {number} [first]  row
 * @param {number} [end]
 * @param {Float64Array} [out]  by row, to be filled
 */
export function timesRows(matrix, x, first = 0, end = matrix.length / x.length, out = new Float64Array(end)) {
  const { length: width } = x;
  // Four rows at a time: each number of x is then read once for all of them. The last may be taken twice.
  for (let row = first; row < end; row += 4) {
    const second = Math.min(row + 1, end - 1), third = Math.min(row + 2, end - 1), fourth = Math.min(row + 3, end - 1);
    const p = row * width, q = second * width, r = third * width, s = fourth * width;
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < width; i += 1) {
      const one = x[i];
      a += one * matrix[p + i];
      b += one * matrix[q + i];
      c += one * matrix[r + i];
      d += one * matrix[s + i];
    }
    out[row] = a;
    out[second] = b;
    out[third] = c;
    out[fourth] = d;
  }
  return out;
}

/** @param {ArrayLike<number>} one @param {ArrayLike<number>} other */
export function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i += 1) sum += one[i] * other[i];
  return sum;
}

/** The place of the number that is farthest from zero. @param {ArrayLike<number>} numbers */
export function farthest(numbers) {
  return Array.from(numbers).reduce((best, value, i) => (Math.abs(value) > Math.abs(numbers[best]) ? i : best), 0);
}
