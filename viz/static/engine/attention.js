/** The dot product, the softmax and the mean of the values, as kernels/eager.py. */

import { multiply, softCapped, tensor, transposed } from "./tensor.js";

/**
 * @typedef {object} Looking  which keys a query sees, and what the softmax is taken of
 * @property {boolean} causal  no query looks ahead
 * @property {[number, number] | null} window  keys before and after its own position that a query sees; null: all
 * @property {number | null} softCap  scores are squeezed into −cap to cap; null: they stay
 */

/**
 * @param {import("./model.js").Config} config
 * @param {number} layer
 * @returns {Looking}
 */
export function lookingOf({ causal, windows, soft_cap: softCap = null }, layer) {
  return { causal, window: windows?.[layer] ?? null, softCap };
}

/**
 * The first key that a query sees, and the one behind the last.
 *
 * @param {Looking} looking
 * @param {number} query
 * @param {number} length
 * @returns {[number, number]}
 */
export function seenKeys({ causal, window }, query, length) {
  const [before, after] = window ?? [length, length];
  return [Math.max(0, query - before), Math.min(length, query + 1 + (causal ? 0 : after))];
}

/**
 * query · key · scale, before soft cap and mask: (head, query, key). Heads may share a key head.
 *
 * @param {import("./tensor.js").Tensor} query
 * @param {import("./tensor.js").Tensor} key
 * @param {number} scale
 */
export function attentionScores(query, key, scale) {
  const [heads, positions, dHead] = query.shape;
  const out = tensor([heads, positions, positions]);
  for (let head = 0; head < heads; head += 1) {
    const product = multiply(ofHead(query, head), ofHead(key, keyHead(head, query, key)), positions, dHead, positions);
    for (let i = 0; i < product.length; i += 1) product[i] *= scale;
    out.values.set(product, head * product.length);
  }
  return out;
}

/**
 * softmax of the scores over the keys that each query may see; 0 for the others.
 *
 * @param {import("./tensor.js").Tensor} scores
 * @param {Looking} looking
 */
export function attentionProbs(scores, looking) {
  const [heads, positions] = scores.shape;
  const capped = softCapped(scores, looking.softCap);
  const out = tensor(scores.shape);
  for (let row = 0; row < heads * positions; row += 1) {
    const [from, to] = seenKeys(looking, row % positions, positions);
    softmaxRow(capped.values, row * positions + from, to - from, out.values);
  }
  return out;
}

/**
 * @param {Float32Array} scores
 * @param {number} from
 * @param {number} allowed
 * @param {Float32Array} out
 */
function softmaxRow(scores, from, allowed, out) {
  let largest = -Infinity;
  for (let i = from; i < from + allowed; i += 1) if (scores[i] > largest) largest = scores[i];
  let total = 0;
  for (let i = from; i < from + allowed; i += 1) {
    const weight = Math.exp(scores[i] - largest);
    out[i] = weight;
    total += weight;
  }
  for (let i = from; i < from + allowed; i += 1) out[i] /= total;
}

/**
 * probs · value: (head, position, d_head).
 *
 * @param {import("./tensor.js").Tensor} probs
 * @param {import("./tensor.js").Tensor} value
 */
export function weightedValues(probs, value) {
  const [, positions, dHead] = value.shape;
  const [heads] = probs.shape;
  const out = tensor([heads, positions, dHead]);
  for (let head = 0; head < heads; head += 1) {
    const columns = transposed(ofHead(value, keyHead(head, probs, value)), positions, dHead);
    out.values.set(multiply(ofHead(probs, head), columns, positions, positions, dHead), head * positions * dHead);
  }
  return out;
}

/**
 * The key-value head that a head reads.
 *
 * @param {number} head
 * @param {import("./tensor.js").Tensor} ofHeads  (head, …)
 * @param {import("./tensor.js").Tensor} ofKeys  (key-value head, …)
 */
function keyHead(head, ofHeads, ofKeys) {
  return Math.floor((head * ofKeys.shape[0]) / ofHeads.shape[0]);
}

/**
 * @param {import("./tensor.js").Tensor} x  (head, …)
 * @param {number} head
 */
export function ofHead({ shape, values }, head) {
  const size = values.length / shape[0];
  return values.subarray(head * size, (head + 1) * size);
}
