/**
 * What edits do to a quantity.
 *
 * @typedef {import("./engine.js").Edit} Edit
 * @typedef {import("./tensor.js").Tensor} Tensor
 *
 * @typedef {object} Where
 * @property {number | null} layer
 * @property {import("./attention.js").Looking} looking  of the layer
 * @property {import("./plan.js").Sources | undefined} sources
 *
 * @typedef {[number, number]} Range  from, to
 * @typedef {[Range, Range, Range]} Ranges  of head, of position or query, and of the last axis
 */

import { seenKeys } from "./attention.js";

/**
 * The quantity with one edit made; the tensor given is left as it is.
 *
 * @param {Tensor} value
 * @param {string[]} axes
 * @param {Edit} edit
 * @param {Where} where
 * @returns {Tensor}
 */
export function edited(value, axes, edit, where) {
  const result = { shape: value.shape, values: value.values.slice() };
  const sizes = sizesOf(value);
  const ranges = rangesOf(sizes, edit, axes);
  if (edit.change === "zero") fill(result, ranges, 0);
  else if (edit.change === "mean") takeMeans(result, ranges, source(edit, where, "clean"));
  else if (edit.change === "text") takeFrom(result, ranges, source(edit, where, "other"));
  else if (edit.change === "hide") hide(result, ranges, where.looking);
  else if (edit.quantity === "probs") setWeights(result, ranges, edit, where.looking);
  else fill(result, ranges, edit.value ?? 0);
  return result;
}

/**
 * The shape as (head, position, last).
 *
 * @param {Tensor} value
 * @returns {[number, number, number]}
 */
function sizesOf({ shape }) {
  return shape.length === 3 ? [shape[0], shape[1], shape[2]] : [1, shape[0], shape[1]];
}

/**
 * @param {[number, number, number]} sizes
 * @param {Edit} edit
 * @param {string[]} axes
 * @returns {Ranges}
 */
function rangesOf(sizes, edit, axes) {
  const last = axes.includes("key") ? edit.key : edit.neuron;
  const chosen = [axes.length === 3 ? edit.head : null, edit.position, last];
  return /** @type {Ranges} */ (
    sizes.map((size, i) => {
      const one = chosen[i] ?? null;
      return one === null ? [0, size] : [one, one + 1];
    })
  );
}

/**
 * @param {Edit} edit
 * @param {Where} where
 * @param {"clean" | "other"} which
 */
function source({ quantity }, { layer, sources }, which) {
  if (!sources) throw new Error(`this edit of ${quantity} has no pass to read from`);
  return sources[which]().read(quantity, layer);
}

/**
 * @param {Tensor} tensor
 * @param {Ranges} ranges
 * @param {(at: number, head: number, position: number, last: number) => void} visit
 */
function forEach(tensor, [heads, positions, lasts], visit) {
  const [, nPositions, nLast] = sizesOf(tensor);
  for (let head = heads[0]; head < heads[1]; head += 1) {
    for (let position = positions[0]; position < positions[1]; position += 1) {
      const row = (head * nPositions + position) * nLast;
      for (let last = lasts[0]; last < lasts[1]; last += 1) visit(row + last, head, position, last);
    }
  }
}

/**
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {number} value
 */
function fill(result, ranges, value) {
  forEach(result, ranges, (at) => (result.values[at] = value));
}

/**
 * The mean over all positions of the source.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {Tensor} clean
 */
function takeMeans(result, ranges, clean) {
  const [heads, positions, width] = sizesOf(clean);
  const means = new Float64Array(heads * width);
  forEach(clean, [[0, heads], [0, positions], [0, width]], (at, head, position, last) => {
    means[head * width + last] += clean.values[at] / positions;
  });
  forEach(result, ranges, (at, head, position, last) => (result.values[at] = means[head * width + last]));
}

/**
 * The same places of the other text, which has as many tokens.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {Tensor} other
 */
function takeFrom(result, ranges, other) {
  const [, own] = sizesOf(result);
  const [, theirs] = sizesOf(other);
  if (own !== theirs) throw new Error(`the other text has ${theirs} tokens and this one ${own}: they must have equally many`);
  forEach(result, ranges, (at) => (result.values[at] = other.values[at]));
}

/**
 * Scores of −inf. Every query must keep a key that it may see.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {import("./attention.js").Looking} looking
 */
function hide(result, ranges, looking) {
  const [, , nKeys] = sizesOf(result);
  forEach(result, ranges, (at, head, query, key) => {
    result.values[at] = -Infinity;
    const [from, to] = seenKeys(looking, query, nKeys);
    const seen = result.values.subarray(at - key + from, at - key + to);
    if (seen.every((score) => score === -Infinity)) throw new Error(`no key is left for the token at position ${query} to look at`);
  });
}

/**
 * One weight of a row, and the others scaled so that the row sums to 1 again. Of all queries those
 * change that see the key and another one.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {Edit} edit
 * @param {import("./attention.js").Looking} looking
 */
function setWeights(result, ranges, { value = 0, position = null }, looking) {
  const [, , nKeys] = sizesOf(result);
  forEach(result, ranges, (at, head, query, key) => {
    const row = result.values.subarray(at - key, at - key + nKeys);
    const [from, to] = seenKeys(looking, query, nKeys);
    const hidden = key < from || key >= to;
    if (hidden && position !== null) throw new Error(`the token at position ${query} cannot look at position ${key}`);
    const others = row.reduce((sum, weight, i) => (i === key ? sum : sum + weight), 0);
    if (!hidden && !others && value !== 1 && position !== null) {
      throw new Error(`the token at position ${query} gives no other token any weight, so none can be scaled`);
    }
    if (hidden || !others) return;
    for (let i = 0; i < nKeys; i += 1) row[i] *= (1 - value) / others;
    row[key] = value;
  });
}
