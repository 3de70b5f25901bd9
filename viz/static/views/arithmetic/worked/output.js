/**
 * The output head worked out: what the decoder reads, a logit, and its part of the softmax.
 *
 * BERT: decoder(LayerNorm(activation(W·x + b))) + bias. GPT-2: LayerNorm(x) times the word embeddings.
 * ModernBERT: a last norm as GPT-2, then a head as BERT. Gemma 2: soft-capped logits.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 */

import { ACTIVATIONS } from "../../../core/data/activations.js";
import { normed } from "../../../core/data/norms.js";
import { activationStep } from "./formulas.js";
import { normSteps } from "./norms.js";
import { lineStep, total } from "./steps.js";
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
 * What the output head reads, whole: the last norm of the stream, or the stream.
 *
 * @param {Teller} at
 */
export async function finalNormed(at) {
  const { x } = await last(at);
  return at.built.finalNorm ? normed(x, await at.norm("body.final_norm", null)).values : x;
}

/**
 * activation(W·x + b) in all dimensions.
 *
 * @param {Teller} at
 * @param {Float32Array} x
 */
async function transformed(at, x) {
  const [w, bias] = await Promise.all([at.weight("head.transform.weight", null, null), at.source.weights("head.transform.bias", null, null)]);
  const activation = ACTIVATIONS[at.built.headActivation];
  return Float32Array.from({ length: w.length / x.length }, (_, i) => activation(total(Array.from(x, (value, j) => value * w[i * x.length + j])) + (bias ? bias.values[i] : 0)));
}

/**
 * What the decoder reads, whole.
 *
 * @param {Teller} at
 */
export async function outputVector(at) {
  const x = await finalNormed(at);
  return at.built.transform ? normed(await transformed(at, x), await at.norm("head.norm", null)).values : x;
}

/** The last norm. @param {Teller} at @returns {Promise<Step[]>} */
export async function outputFinal(at) {
  const { x, way } = await last(at);
  return normSteps({ x, dimension: at.place.dimension, norm: await at.norm("body.final_norm", null), to: way });
}

/** @param {Teller} at @returns {Promise<Step[]>} */
export async function outputHidden(at) {
  const { dimension } = at.place;
  if (!at.built.transform) return outputFinal(at);
  const way = at.built.finalNorm ? to("hidden") : (await last(at)).way;
  const x = await finalNormed(at);
  const [w, offset, all, norm] = await Promise.all([
    at.weight("head.transform.weight", dimension, null),
    at.bias("head.transform.bias", dimension, null),
    transformed(at, x),
    at.norm("head.norm", null),
  ]);
  const before = linear("The head has a matrix of its own before the vocabulary.", products(x, w, dimensionName, way), ["x", "W"], offset);
  return [...before, activationStep(at.built.headActivation, before[before.length - 1].value), ...normSteps({ x: all, dimension, norm })];
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
  const steps = linear(says, products(x, row, dimensionName, to("head_hidden")), ["x", own ? "W" : "E"], bias);
  return at.built.logitSoftCap ? [...steps, capped(steps[steps.length - 1].value, at.built.logitSoftCap)] : steps;
}

/**
 * @param {number} logit
 * @param {number} cap
 * @returns {Step}
 */
function capped(logit, cap) {
  const value = cap * Math.tanh(logit / cap);
  const says = "Logits are squeezed into −cap to cap: small ones stay nearly as they are, none grows beyond.";
  return lineStep("cap", "Soft cap", says, [["cap × tanh(_logit_ / cap) = ", cap, " × tanh(", logit, " / ", cap, ") = ", value]], value);
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
