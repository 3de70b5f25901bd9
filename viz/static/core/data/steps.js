/**
 * One attention weight, step by step, in double precision. No document here.
 *
 * @typedef {import("./example.js").Vectors} Vectors
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

import { cappedScore, scoresOf, seenOf, softmax } from "./softmax.js";

const CONTENT = /[\p{L}\p{N}]/u;

/**
 * The last token that is a word or part of one; without any, the last that is no mark of structure.
 *
 * @param {import("./data.js").Tokens} tokens
 */
export function usualQuery({ text, special }) {
  const places = Array.from(text.keys()).reverse();
  const plain = places.filter((i) => !special[i]);
  return plain.find((i) => CONTENT.test(text[i].slice(0, 200))) ?? plain[0] ?? places[0];
}

/**
 * @param {Vectors} vectors
 * @param {boolean} causal
 * @param {number} query
 * @returns {Row}
 */
export function rowOf(vectors, causal, query) {
  const { first, end } = seenOf(vectors, causal, query);
  const scores = scoresOf(vectors, query);
  const capped = vectors.softCap ? scores.map((score) => cappedScore(score, vectors.softCap)) : scores;
  const weights = softmax(capped, end, first);
  let strongest = first;
  for (let key = first + 1; key < end; key += 1) if (scores[key] > scores[strongest]) strongest = key;
  const exps = capped.map((score, key) => (key >= first && key < end ? Math.exp(score - capped[strongest]) : 0));
  const denominator = exps.reduce((sum, value) => sum + value, 0);
  return { query, first, end, scores, capped, strongest, exps, denominator, weights };
}

/**
 * True where the query of a row may look at a key.
 *
 * @param {Pick<Row, "first" | "end">} row
 * @param {number} key
 */
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
 * @param {import("./example.js").Example} example
 * @param {Vectors} vectors
 */
export function openingQuery({ tokens, keyTokens, causal }, vectors) {
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
 * @param {import("./example.js").Example} example
 * @param {Vectors} vectors
 * @param {{query: number | null, key: number | null}} state
 * @returns {{row: Row, key: number}}
 */
export function pairOf(example, vectors, { query, key }) {
  // The text beside may be shorter than the one whose token was chosen.
  const known = query !== null && query < vectors.nQueries;
  const row = rowOf(vectors, example.causal, known ? query : openingQuery(example, vectors));
  return { row, key: key !== null && key < vectors.nKeys ? key : row.strongest };
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
 * The sum of these, and of those above and below zero.
 *
 * @param {Float64Array} numbers
 */
export function sumsOf(numbers) {
  const sums = { all: 0, above: 0, below: 0, nAbove: 0, nBelow: 0 };
  for (const number of numbers) {
    sums.all += number;
    if (number > 0) {
      sums.above += number;
      sums.nAbove += 1;
    } else if (number < 0) {
      sums.below += number;
      sums.nBelow += 1;
    }
  }
  return sums;
}

/**
 * What the head hands on for a query: z = sum over keys of weight * value.
 *
 * @param {Float32Array} values  (key, width)
 * @param {Float64Array} weights
 * @param {number} width
 * @returns {Float64Array}
 */
export function mixtureOf(values, weights, width) {
  const z = new Float64Array(width);
  weights.forEach((weight, key) => {
    if (weight) for (let i = 0; i < width; i += 1) z[i] += weight * values[key * width + i];
  });
  return z;
}

/**
 * The dimensions in the order they are shown in.
 *
 * @param {ArrayLike<number>} numbers
 * @param {string} order  "size": the largest first
 * @returns {number[]}
 */
export function dimensions(numbers, order) {
  const all = Array.from({ length: numbers.length }, (_, i) => i);
  if (order !== "size") return all;
  return all.sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a]) || a - b);
}

/**
 * Why a head's numbers cannot be shown, for a person to read.
 *
 * @param {import("./example.js").Example} example
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
