/** The dot product, the softmax and the mean of the values, as kernels/eager.py. */

import { multiply, tensor, transposed } from "./tensor.js";

/**
 * query · key · scale, before the mask: (head, query, key).
 *
 * @param {import("./tensor.js").Tensor} query
 * @param {import("./tensor.js").Tensor} key
 * @param {number} scale
 */
export function attentionScores(query, key, scale) {
  const [heads, positions, dHead] = query.shape;
  const out = tensor([heads, positions, positions]);
  for (let head = 0; head < heads; head += 1) {
    const product = multiply(ofHead(query, head), ofHead(key, head), positions, dHead, positions);
    for (let i = 0; i < product.length; i += 1) product[i] *= scale;
    out.values.set(product, head * product.length);
  }
  return out;
}

/**
 * softmax of the scores over the keys that each query may see; 0 for the others.
 *
 * @param {import("./tensor.js").Tensor} scores
 * @param {boolean} causal
 */
export function attentionProbs(scores, causal) {
  const [heads, positions] = scores.shape;
  const out = tensor(scores.shape);
  for (let row = 0; row < heads * positions; row += 1) {
    const allowed = causal ? (row % positions) + 1 : positions;
    softmaxRow(scores.values, row * positions, allowed, out.values);
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
  const [heads, positions, dHead] = value.shape;
  const out = tensor(value.shape);
  for (let head = 0; head < heads; head += 1) {
    const columns = transposed(ofHead(value, head), positions, dHead);
    out.values.set(multiply(ofHead(probs, head), columns, positions, positions, dHead), head * positions * dHead);
  }
  return out;
}

/**
 * @param {import("./tensor.js").Tensor} x  (head, …)
 * @param {number} head
 */
export function ofHead({ shape, values }, head) {
  const size = values.length / shape[0];
  return values.subarray(head * size, (head + 1) * size);
}
