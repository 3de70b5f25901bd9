/**
 * The answers of a task head as tokens and probabilities, as answers/predict.py.
 *
 * @typedef {import("./engine.js").Candidate} Candidate
 * @typedef {import("./engine.js").Prediction} Prediction
 */

/** Candidates of a prediction. */
const TOP = 10;

/** What a model predicts. @param {import("./model.js").Config} config @returns {"masked" | "causal" | "none"} */
export function predicts({ task }) {
  if (task === "causal-lm") return "causal";
  return task === "none" ? "none" : "masked";
}

/**
 * The token at each mask token, or the one after the last.
 *
 * @param {import("./pass.js").Pass} pass
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @returns {Prediction[]}
 */
export function predictions(pass, tokenizer) {
  const kind = predicts(pass.model.config);
  if (kind === "none") return [];
  const { ids } = pass.tokens;
  const places = kind === "causal" ? [ids.length - 1] : [...ids.keys()].filter((i) => ids[i] === tokenizer.mask);
  return places.map((position) => ({ position, candidates: candidates(pass.logitsAt(position), tokenizer) }));
}

/**
 * The most probable tokens, or those that are asked for.
 *
 * @param {Float32Array} logits  (vocab)
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @param {number[]} [ids]
 * @returns {Candidate[]}
 */
export function candidates(logits, tokenizer, ids) {
  const probs = softmax(logits);
  // Some checkpoints have more logits than their tokenizer has tokens.
  const chosen = ids ?? best(probs.subarray(0, tokenizer.size), TOP);
  return chosen.map((id) => ({ id, text: tokenizer.string(id), logit: logits[id], prob: probs[id] }));
}

/** @param {Float32Array} logits */
export function softmax(logits) {
  const largest = largestOf(logits);
  if (!Number.isFinite(largest)) throw new Error("the logits have NaN or infinity, so nothing can be predicted");
  const probs = new Float64Array(logits.length);
  let total = 0;
  for (let i = 0; i < probs.length; i += 1) total += probs[i] = Math.exp(logits[i] - largest);
  for (let i = 0; i < probs.length; i += 1) probs[i] /= total;
  return probs;
}

/** NaN where one of them is. @param {ArrayLike<number>} logits */
function largestOf(logits) {
  let largest = -Infinity;
  for (let i = 0; i < logits.length; i += 1) largest = Math.max(largest, logits[i]);
  return largest;
}

/**
 * log softmax of one token.
 *
 * @param {Float32Array} logits
 * @param {number} id
 */
export function logProb(logits, id) {
  const largest = largestOf(logits);
  let total = 0;
  for (let i = 0; i < logits.length; i += 1) total += Math.exp(logits[i] - largest);
  return logits[id] - largest - Math.log(total);
}

/**
 * The places of the largest values, the largest first, ties in order.
 *
 * @param {Float64Array} values
 * @param {number} count
 */
function best(values, count) {
  /** @type {number[]} */
  const found = [];
  values.forEach((value, i) => {
    if (found.length === count && value <= values[found[count - 1]]) return;
    let place = found.length;
    while (place && values[found[place - 1]] < value) place -= 1;
    found.splice(place, 0, i);
    if (found.length > count) found.pop();
  });
  return found;
}
