/**
 * The answers of a task head as tokens or classes and their probabilities, as answers/predict.py.
 *
 * @typedef {import("./engine.js").Candidate} Candidate
 * @typedef {import("./engine.js").Prediction} Prediction
 */

/** Candidates of a prediction. */
const TOP = 10;

/** What a model predicts. @param {import("./model.js").Config} config @returns {import("./engine.js").Predicts} */
export function predicts({ task }) {
  if (task === "causal-lm") return "causal";
  if (task === "sequence-classification") return "classes";
  return task === "none" ? "none" : "masked";
}

/** True where each position has a logit for every token. @param {import("./model.js").Config} config */
export function predictsTokens(config) {
  return ["masked", "causal"].includes(predicts(config));
}

/**
 * What the candidates of a prediction are: tokens, or classes.
 *
 * @typedef {{size: number, string: (id: number) => string}} Names
 *
 * @param {import("./model.js").Config} config
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @returns {Names}
 */
export function namesOf(config, tokenizer) {
  if (predicts(config) !== "classes") return tokenizer;
  return { size: config.labels.length, string: (id) => config.labels[id] };
}

/**
 * The token at each mask token, or the one after the last; the class of the text, at its first position.
 *
 * @param {import("./pass.js").Pass} pass
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @returns {Prediction[]}
 */
export function predictions(pass, tokenizer) {
  const kind = predicts(pass.model.config);
  if (kind === "none") return [];
  const { ids } = pass.tokens;
  const masks = [...ids.keys()].filter((i) => ids[i] === tokenizer.mask);
  const places = { causal: [ids.length - 1], classes: [0], masked: masks }[kind];
  const names = namesOf(pass.model.config, tokenizer);
  return places.map((position) => ({ position, candidates: candidates(pass.logitsAt(position), names) }));
}

/**
 * The most probable tokens or classes, or those that are asked for.
 *
 * @param {Float32Array} logits  (vocab) or (label)
 * @param {Names} names
 * @param {number[]} [ids]
 * @returns {Candidate[]}
 */
export function candidates(logits, names, ids) {
  const probs = softmax(logits);
  // Some checkpoints have more logits than their tokenizer has tokens.
  const chosen = ids ?? best(probs.subarray(0, names.size), TOP);
  return chosen.map((id) => ({ id, text: names.string(id), logit: logits[id], prob: probs[id] }));
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
