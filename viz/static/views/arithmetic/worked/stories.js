/**
 * Every quantity of a pass, worked out at one place: name for name the table of layers/layer.py, and
 * the norms and output heads between them. wiring.js says which of them a layer has.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 * @typedef {import("../../../core/data/source.js").Shape} Shape
 * @typedef {import("../../../core/data/source.js").Built} Built
 *
 * @typedef {object} Told
 * @property {Step[]} steps
 * @property {number} value  what they come to
 *
 * @typedef {object} Worked  one quantity
 * @property {string} id
 * @property {string} label
 * @property {string} group
 * @property {string} says  in words, what the whole vector is
 * @property {"model" | "head" | "mlp" | "vocabulary"} of  its last axis, or one like it
 * @property {boolean} layered  each layer has one
 * @property {(built: Built) => boolean} there  models that have it; of a layer wiring.js says it
 * @property {boolean} headed  each head has one
 * @property {boolean} read  the engine gives it
 * @property {(at: Teller) => Promise<Step[]>} tell
 */

import { layerSteps, normName } from "../../../core/data/wiring.js";
import { embed, summed, summedVector } from "./embedding.js";
import { activationStep } from "./formulas.js";
import { attnOut, headOut, projected, turned, z } from "./heads.js";
import { normSteps } from "./norms.js";
import { finalNormed, outputFinal, outputHidden, outputLogits, outputVector } from "./output.js";
import { lineStep, sumStep } from "./steps.js";
import { dimensionName, linear, products, to } from "./teller.js";

/**
 * @param {string} id
 * @param {string} group
 * @param {string} label
 * @param {string} says
 * @param {Worked["of"]} of
 * @param {Worked["tell"]} tell
 * @param {Partial<Worked>} [more]
 * @returns {Worked}
 */
function worked(id, group, label, says, of, tell, more = {}) {
  return { id, group, label, says, of, tell, layered: true, headed: of === "head", there: () => true, read: true, ...more };
}

/**
 * @param {string} id
 * @param {string} group
 * @param {string} label
 * @param {string} says
 */
function normed(id, group, label, says) {
  return worked(id, group, label, says, "model", (at) => between(at, id), { read: false });
}

/** What several heads may share. */
const OF_KEYS = new Set(["key_unrotated", "key", "value"]);

/** @type {Worked[]} */
export const WORKED = [
  worked("embed_input", "Embedding", "what the projection reads", "the rows of the tables, added up and normed", "model", summed, { layered: false, there: ({ embedProject }) => embedProject, read: false }),
  worked("embed", "Embedding", "embed", "what enters layer 0", "model", embed, { layered: false }),
  normed("attention_input", "Attention", "LayerNorm before attention", "what W_Q, W_K and W_V read"),
  worked("query_unrotated", "Attention", "query_unrotated", "what a token looks for, before it is turned", "head", (at) => projected(at, "query_unrotated")),
  worked("key_unrotated", "Attention", "key_unrotated", "what it is found by, before it is turned", "head", (at) => projected(at, "key_unrotated")),
  worked("query", "Attention", "query", "what a token looks for", "head", (at) => (at.built.rotary ? turned : projected)(at, "query")),
  worked("key", "Attention", "key", "what it is found by", "head", (at) => (at.built.rotary ? turned : projected)(at, "key")),
  worked("value", "Attention", "value", "what it hands on", "head", (at) => projected(at, "value")),
  worked("z", "Attention", "z", "the mean of the values, by the weights", "head", z),
  worked("head_out", "Attention", "head_out", "what one head adds to the stream", "model", headOut, { headed: true }),
  worked("attn_out", "Attention", "attn_out", "what all heads add to the stream", "model", attnOut),
  normed("attention_output", "Attention", "LayerNorm after attention", "what is added to the stream of it"),
  worked("resid_mid", "Stream", "resid_mid", "the stream after attention", "model", (at) => added(at, "attention")),
  normed("mlp_input", "MLP", "LayerNorm before the MLP", "what W_in reads"),
  worked("mlp_gate", "MLP", "mlp_gate", "each neuron's gate before its activation", "mlp", (at) => neuron(at, "mlp_gate")),
  worked("mlp_pre", "MLP", "mlp_pre", "each neuron before its activation", "mlp", (at) => neuron(at, "mlp_pre")),
  worked("mlp_post", "MLP", "mlp_post", "each neuron after its activation", "mlp", fired),
  worked("mlp_out", "MLP", "mlp_out", "what all neurons add to the stream", "model", mlpOut),
  normed("mlp_output", "MLP", "LayerNorm after the MLP", "what is added to the stream of it"),
  worked("resid_post", "Stream", "resid_post", "the stream after the MLP: what the next layer reads", "model", (at) => added(at, "mlp")),
  worked("hidden", "Output", "the last LayerNorm", "what the output head reads", "model", outputFinal, { layered: false, there: hasBoth, read: false }),
  worked("head_hidden", "Output", "what the decoder reads", "the stream made ready for the vocabulary", "model", outputHidden, { layered: false, read: false }),
  worked("logits", "Output", "logits", "a number for each token of the vocabulary", "vocabulary", outputLogits, { layered: false }),
];

/** A last norm, and a matrix behind it. @param {Built} built */
function hasBoth({ finalNorm, transform }) {
  return finalNorm && transform;
}

/**
 * The quantities that a model has in some layer, by its own names.
 *
 * @param {Shape} shape
 */
export function workedIn({ built, predicts, layers }) {
  const known = new Set(["head_out", ...Array.from({ length: layers }, (_, n) => layerSteps(built, n)).flat().map(({ id }) => id)]);
  const has = (/** @type {Worked} */ { id, layered, group, there }) => (layered ? known.has(id) : there(built) && (group !== "Output" || predicts !== "none"));
  const name = normName(built);
  // With a gate the activation is that of another number.
  const labelled = (/** @type {Worked} */ one) => ({ ...one, label: one.label.replace("LayerNorm", name), says: saysOf(one, built) });
  return WORKED.filter(has).map(labelled);
}

/** @param {Worked} quantity @param {Built} built */
function saysOf({ id, says }, { gated, rotary, parallel }) {
  if (gated && id === "mlp_pre") return "what the gate of each neuron lets through";
  if (gated && id === "mlp_post") return "each neuron after its gate";
  if (gated && id === "mlp_input") return "what W_in and W_gate read";
  if (rotary && (id === "query" || id === "key")) return `${says}, turned by where it stands`;
  if (parallel && id === "resid_mid") return "the stream and what attention adds";
  return says;
}

/**
 * All numbers of a quantity at the place.
 *
 * @param {Worked} quantity  not the logits
 * @param {Teller} at
 * @returns {Promise<Float32Array>}
 */
export async function vectorAt({ id, headed, layered }, at) {
  if (id === "embed_input") return summedVector(at);
  if (id === "hidden") return finalNormed(at);
  if (id === "head_hidden") return outputVector(at);
  if (!layered) return at.row(id, null);
  if (headed) return at.headRow(id, OF_KEYS.has(id) ? at.keyHead : at.place.head);
  return at.vector(at.find(id) ? id : "resid_pre");
}

/**
 * The steps of a quantity and what they come to.
 *
 * @param {Worked} quantity
 * @param {Teller} at
 * @returns {Promise<Told>}
 */
export async function told(quantity, at) {
  const steps = await quantity.tell(at);
  return { steps, value: steps[steps.length - 1].value };
}

/**
 * A norm that stands between two quantities.
 *
 * @param {Teller} at
 * @param {string} id
 * @returns {Promise<Step[]>}
 */
async function between(at, id) {
  const { dimension } = at.place;
  const own = at.find(id);
  if (!own) {
    const x = await at.row("resid_pre");
    const says = "This layer has no norm before attention: what is read here is the stream as it is.";
    return [lineStep("no-norm", "No norm", says, [["_x_ = ", x[dimension]]], x[dimension])];
  }
  const [from] = own.reads;
  return normSteps({ x: await at.vector(from), dimension, norm: await at.norm(own.norm), to: at.way(from) });
}

/**
 * resid_mid or resid_post.
 *
 * @param {Teller} at
 * @param {"attention" | "mlp"} part
 */
async function added(at, part) {
  const { dimension } = at.place;
  const { reads: [before, out], norm } = at.step(part === "attention" ? "resid_mid" : "resid_post");
  const [stream, change] = await Promise.all([at.vector(before), at.vector(out)]);
  const after = at.step(out).between ? `, after ${at.normName}` : "";
  const terms = [
    { name: `${before}: the stream as it was`, factors: [], value: stream[dimension], to: at.way(before)(dimension) },
    { name: `${out}: what ${part === "attention" ? "attention" : "the MLP"} adds${after}`, factors: [], value: change[dimension], to: to(out)(dimension) },
  ];
  const sum = sumStep("sum", "Add to the stream", "Nothing is replaced: what was there stays, and something is added.", terms);
  if (!norm) return [sum];
  const x = Float32Array.from(stream, (value, i) => value + change[i]);
  return [sum, ...normSteps({ x, dimension, norm: await at.norm(norm) })];
}

/**
 * mlp_pre or mlp_gate.
 *
 * @param {Teller} at
 * @param {"mlp_pre" | "mlp_gate"} id
 */
async function neuron(at, id) {
  const { dimension } = at.place;
  const [weight, letters] = id === "mlp_gate" ? ["mlp.gate", "W_gate"] : ["mlp.up", "W_in"];
  const [{ x, steps, to: way }, w, bias] = await Promise.all([at.input(id), at.weight(`${weight}.weight`, dimension), at.bias(`${weight}.bias`, dimension)]);
  const says = `Neuron ${dimension} has ${x.length} weights, one for each dimension of the token.`;
  return [...steps, ...linear(says, products(x, w, dimensionName, way), ["x", letters], bias)];
}

/** @param {Teller} at @returns {Promise<Step[]>} */
async function fired(at) {
  const { dimension } = at.place;
  const { activation, gated } = at.built;
  const enters = gated ? "mlp_gate" : "mlp_pre";
  const before = await neuron(at, enters);
  // With an edit of what enters the activation it reads what the edit left.
  const made = activationStep(activation, (await at.row(enters))[dimension]);
  if (!gated) return [...before, made];
  const pre = (await at.row("mlp_pre"))[dimension];
  const says = `A second matrix, W_in, makes a number for this neuron too, mlp_pre. What ${activation} gives, the gate, says how much of it passes.`;
  const term = { name: `neuron ${dimension}`, factors: [made.value, pre], value: made.value * pre, to: to("mlp_pre")(dimension) };
  return [...before, made, sumStep("gate", "The gate", says, [term], ["gate", "mlp_pre"])];
}

/** @param {Teller} at */
async function mlpOut(at) {
  const { dimension } = at.place;
  const [post, w, bias] = await Promise.all([at.row("mlp_post"), at.weight("mlp.down.weight", dimension), at.bias("mlp.down.bias", dimension)]);
  const says = `All ${post.length} neurons add to this dimension, each as strongly as it fires times its weight.`;
  return linear(says, products(post, w, (i) => `neuron ${i}`, to("mlp_post")), ["mlp_post", "W_out"], bias);
}
