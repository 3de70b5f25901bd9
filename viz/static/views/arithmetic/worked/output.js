/**
 * The output head worked out: what the decoder reads, a logit, and its part of the softmax.
 *
 * BERT: decoder(LayerNorm(activation(W·x + b))) + bias. GPT-2: LayerNorm(x) times the word embeddings.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 */

import { ACTIVATIONS } from "../../../core/data/activations.js";
import { activationStep } from "./formulas.js";
import { layerNorm, layerNormSteps, lineStep, total } from "./steps.js";
import { dimensionName, linear, products, to } from "./teller.js";

/**
 * The last stream, and where a dimension of it is worked out.
 *
 * @param {Teller} at
 */
async function last(at) {
  const layer = at.source.shape.layers - 1;
  return { x: await at.row("resid_post", layer), way: to("resid_post", { layer }) };
}

/**
 * activation(W·x + b) in all dimensions.
 *
 * @param {Teller} at
 * @param {Float32Array} x
 */
async function transformed(at, x) {
  const [w, bias] = await Promise.all([at.weight("head.transform.weight", null, null), at.weight("head.transform.bias", null, null)]);
  const activation = ACTIVATIONS[at.built.activation];
  return Float32Array.from(bias, (b, i) => activation(total(Array.from(x, (value, j) => value * w[i * x.length + j])) + b));
}

/**
 * What the decoder reads, whole.
 *
 * @param {Teller} at
 */
export async function outputVector(at) {
  const { x } = await last(at);
  const own = at.built.transform ? await transformed(at, x) : x;
  if (!at.built.transform && !at.built.finalNorm) return x;
  const { weight, bias } = await at.norm(at.built.transform ? "head.norm" : "body.final_norm", null);
  return layerNorm(own, weight, bias, at.eps).values;
}

/** @param {Teller} at @returns {Promise<Step[]>} */
export async function outputHidden(at) {
  const { dimension } = at.place;
  const { x, way } = await last(at);
  if (!at.built.transform) {
    const { weight, bias } = await at.norm("body.final_norm", null);
    return layerNormSteps({ x, dimension, weight, bias, eps: at.eps, to: way });
  }
  const [w, offset, all, { weight, bias }] = await Promise.all([
    at.weight("head.transform.weight", dimension, null),
    at.bias("head.transform.bias", dimension, null),
    transformed(at, x),
    at.norm("head.norm", null),
  ]);
  const before = linear("The head has a matrix of its own before the vocabulary.", products(x, w, dimensionName, way), ["x", "W"], offset);
  const norm = layerNormSteps({ x: all, dimension, weight, bias, eps: at.eps });
  return [...before, activationStep(at.built.activation, before[before.length - 1].value), ...norm];
}

/** @param {Teller} at @returns {Promise<Step[]>} */
export async function outputLogits(at) {
  const { dimension: id } = at.place;
  const own = await at.source.weights("head.decoder.weight", null, id);
  const [x, row, bias] = await Promise.all([
    outputVector(at),
    own ? own.values : at.weight("body.word.weight", id, null),
    at.bias("head.decoder.bias", id, null),
  ]);
  const tied = own ? "the decoder's row of this token" : "the word embedding of this token, which is used a second time here";
  const says = `What the model has made of this place, times ${tied}. The better they fit, the larger the logit.`;
  return linear(says, products(x, row, dimensionName, to("head_hidden")), ["x", own ? "W" : "E"], bias);
}

/**
 * From a logit to a probability.
 *
 * @param {number} logit
 * @param {import("../../../core/data/source.js").Candidate[]} candidates  the most probable first
 * @returns {Step}
 */
export function softmaxStep(logit, candidates) {
  const [first] = candidates;
  // The first one's exponential is 1: its share says what all of them add up to.
  const denominator = 1 / first.prob;
  const exp = Math.exp(logit - first.logit);
  const value = exp / denominator;
  const says = "Every logit becomes positive by the exponential, and its share of their sum is the probability. The largest logit is taken off first; it cancels out.";
  return lineStep("softmax", "Softmax", says, [
    ["exp(_logit_ − largest) = exp(", logit, " − ", first.logit, ") = ", exp],
    ["_probability_ = ", exp, " / ", denominator, " = ", value],
  ], value);
}
