/**
 * From logits to the probabilities that the next token is drawn with, as answers/sampling.py:
 * temperature, top-k, top-p, in this order. What is left is decided in single precision.
 *
 * @typedef {import("./engine.js").Sampling} Sampling
 */

import { softmax } from "./predictions.js";

/**
 * softmax(logits / temperature) over the tokens that top-k and top-p leave, 0 elsewhere. With
 * temperature 0 they are 1 for the most probable token.
 *
 * @param {Float32Array} logits
 * @param {Sampling} sampling
 * @returns {Float64Array}
 */
export function drawnProbs(logits, sampling) {
  checkSampling(sampling);
  const { temperature, topK, topP } = sampling;
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!Number.isFinite(largest)) throw new Error("the logits have NaN or infinity, so no next token can be chosen");
  if (temperature === 0) {
    const best = logits.indexOf(largest);
    return Float64Array.from(logits, (_, i) => Number(i === best));
  }
  let cooled = logits.map((logit) => logit / temperature);
  // The largest becomes 0, so that a tiny temperature gives -inf and not inf.
  if (!cooled.every(Number.isFinite)) cooled = logits.map((logit) => (logit - largest) / temperature);
  if (topK !== null) cooled = keepTopK(cooled, topK);
  if (topP !== null && topP < 1) cooled = keepTopP(cooled, topP);
  return softmax(cooled);
}

/**
 * The k largest logits, those equal to the k-th among them, and −inf in place of the others.
 *
 * @param {Float32Array} logits
 * @param {number} k
 */
function keepTopK(logits, k) {
  const least = logits.slice().sort()[Math.max(logits.length - k, 0)];
  return logits.map((logit) => (logit < least ? -Infinity : logit));
}

/**
 * The fewest largest logits whose probabilities sum to p or more; −inf for the others.
 *
 * @param {Float32Array} logits
 * @param {number} p
 */
function keepTopP(logits, p) {
  const order = [...logits.keys()].sort((a, b) => logits[a] - logits[b] || a - b);
  const probs = softmax(logits);
  const kept = logits.slice();
  let sum = 0;
  for (const id of order.slice(0, -1)) {
    // From the smallest up, as transformers does.
    sum += Math.fround(probs[id]);
    if (Math.fround(sum) > Math.fround(1 - p)) break;
    kept[id] = -Infinity;
  }
  return kept;
}

/**
 * The first id whose cumulative probability exceeds a number between 0 and 1 that the seed gives.
 *
 * @param {Float64Array} probs
 * @param {number} seed
 * @param {number} turn  another one gives another number
 */
export function draw(probs, seed, turn) {
  const wanted = uniform(seed, turn) * probs.reduce((a, b) => a + b, 0);
  let sum = 0;
  let last = 0;
  for (let id = 0; id < probs.length; id += 1) {
    if (!probs[id]) continue;
    sum += probs[id];
    last = id;
    if (sum > wanted) break;
  }
  return last;
}

/**
 * A number in [0, 1) from a seed and a count, whose bits are mixed. Source of the mixing: C. Wellons,
 * hash-prospector, "16 21f0aaad 15 735a2d97 15".
 *
 * @param {number} seed
 * @param {number} turn
 */
function uniform(seed, turn) {
  let bits = (seed + Math.imul(turn + 1, 0x9e3779b9)) | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x21f0aaad);
  bits = Math.imul(bits ^ (bits >>> 15), 0x735a2d97);
  return ((bits ^ (bits >>> 15)) >>> 0) / 2 ** 32;
}

/** @param {Sampling} sampling */
function checkSampling({ temperature, topK, topP }) {
  if (!(temperature >= 0 && temperature < Infinity)) throw new Error(`temperature ${temperature}: expected a number from 0 up`);
  if (topK !== null && !(Number.isInteger(topK) && topK >= 1)) throw new Error(`top-k ${topK}: expected a whole number from 1 up`);
  if (topP !== null && !(topP > 0 && topP <= 1)) throw new Error(`top-p ${topP}: expected a probability above 0 and up to 1`);
}
