/**
 * Every quantity of a pass, worked out at one place: name for name the table of layers/layer.py, and
 * what pre-norm models and output heads have between them.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 * @typedef {import("../../../core/data/source.js").Shape} Shape
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
 * @property {"model" | "head" | "mlp" | "vocabulary"} of  its last axis
 * @property {boolean} layered  each layer has one
 * @property {"before" | "any" | "output"} there  models that have it
 * @property {boolean} headed  each head has one
 * @property {boolean} read  the engine gives it
 * @property {(at: Teller) => Promise<Step[]>} tell
 */

import { tokenName } from "../../../core/text/text.js";
import { activationStep } from "./formulas.js";
import { outputHidden, outputLogits, outputVector } from "./output.js";
import { layerNormSteps, sumStep, total } from "./steps.js";
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
  return { id, group, label, says, of, tell, layered: true, headed: of === "head", there: "any", read: true, ...more };
}

/** @type {Worked[]} */
export const WORKED = [
  worked("embed", "Embedding", "embed", "what enters layer 0", "model", embed, { layered: false }),
  worked("attention_input", "Attention", "LayerNorm before attention", "what W_Q, W_K and W_V read", "model", (at) => normInput(at, "attention"), { there: "before", read: false }),
  worked("query", "Attention", "query", "what a token looks for", "head", (at) => projected(at, "query")),
  worked("key", "Attention", "key", "what it is found by", "head", (at) => projected(at, "key")),
  worked("value", "Attention", "value", "what it hands on", "head", (at) => projected(at, "value")),
  worked("z", "Attention", "z", "the mean of the values, by the weights", "head", z),
  worked("head_out", "Attention", "head_out", "what one head adds to the stream", "model", headOut, { headed: true }),
  worked("attn_out", "Attention", "attn_out", "what all heads add to the stream", "model", attnOut),
  worked("resid_mid", "Stream", "resid_mid", "the stream after attention", "model", (at) => added(at, "attention")),
  worked("mlp_input", "MLP", "LayerNorm before the MLP", "what W_in reads", "model", (at) => normInput(at, "mlp"), { there: "before", read: false }),
  worked("mlp_pre", "MLP", "mlp_pre", "each neuron before its activation", "mlp", async (at) => neuron(at)),
  worked("mlp_post", "MLP", "mlp_post", "each neuron after its activation", "mlp", async (at) => {
    const before = await neuron(at);
    // With an edit of mlp_pre the activation reads what the edit left.
    const pre = (await at.row("mlp_pre"))[at.place.dimension];
    return [...before, activationStep(at.built.activation, pre)];
  }),
  worked("mlp_out", "MLP", "mlp_out", "what all neurons add to the stream", "model", mlpOut),
  worked("resid_post", "Stream", "resid_post", "the stream after the MLP: what the next layer reads", "model", (at) => added(at, "mlp")),
  worked("head_hidden", "Output", "what the decoder reads", "the stream made ready for the vocabulary", "model", outputHidden, { layered: false, there: "output", read: false }),
  worked("logits", "Output", "logits", "a number for each token of the vocabulary", "vocabulary", outputLogits, { layered: false, there: "output" }),
];

/**
 * The quantities that a model has.
 *
 * @param {Shape} shape
 */
export function workedIn({ built, predicts }) {
  return WORKED.filter(({ there }) => there === "any" || (there === "before" ? built?.norm === "before" : predicts !== "none"));
}

/**
 * How many numbers the vector of a quantity has.
 *
 * @param {Worked} quantity
 * @param {Shape} shape
 */
export function widthOf({ of }, shape) {
  return { model: shape.dModel, head: shape.dHead, mlp: shape.dMlp, vocabulary: shape.vocabulary }[of];
}

/**
 * All numbers of a quantity at the place.
 *
 * @param {Worked} quantity  not the logits
 * @param {Teller} at
 * @returns {Promise<Float32Array>}
 */
export async function vectorAt({ id, headed, layered }, at) {
  if (id === "attention_input") return (await at.input("attention")).x;
  if (id === "mlp_input") return (await at.input("mlp")).x;
  if (id === "head_hidden") return outputVector(at);
  return headed ? at.headRow(id) : at.row(id, layered ? at.place.layer : null);
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

/** @param {Teller} at */
async function embed(at) {
  const { position, dimension } = at.place;
  const id = at.source.ids[position];
  const segment = at.tokens.segment[position];
  const tables = /** @type {[string, string, number][]} */ ([
    [`word embedding of ${tokenName(at.tokens, position)} (row ${id})`, "body.word.weight", id],
    [`position embedding of position ${position}`, "body.position.weight", position],
    ...(at.built.segments ? [[`segment embedding of text ${segment ? "B" : "A"}`, "body.segment.weight", segment]] : []),
  ]);
  const rows = await Promise.all(tables.map(([, name, row]) => at.weight(name, row, null)));
  const terms = tables.map(([name], i) => ({ name, factors: [], value: rows[i][dimension] }));
  const sum = sumStep("embeddings", "Look up and add", "Each is a row of a table that was learned: one for the word, one for the place where it stands, where there are two texts one for the text.", terms);
  if (!at.built.embedNorm) return [sum];
  const x = Float32Array.from(rows[0], (_, i) => total(rows.map((row) => row[i])));
  const { weight, bias } = await at.norm("body.embed_norm", null);
  return [sum, ...layerNormSteps({ x, dimension, weight, bias, eps: at.eps })];
}

/**
 * @param {Teller} at
 * @param {"attention" | "mlp"} part
 */
async function normInput(at, part) {
  const x = await at.row(part === "attention" ? "resid_pre" : "resid_mid");
  const { weight, bias } = await at.norm(`${part}_norm`);
  const way = part === "attention" ? at.entering : to("resid_mid");
  return layerNormSteps({ x, dimension: at.place.dimension, weight, bias, eps: at.eps, to: way });
}

/**
 * @param {Teller} at
 * @param {"query" | "key" | "value"} name
 */
async function projected(at, name) {
  const { head, dimension } = at.place;
  const row = head * at.source.shape.dHead + dimension;
  const letter = name[0].toUpperCase();
  const [{ x, steps, to: way }, w, bias] = await Promise.all([at.input("attention"), at.weight(`attention.${name}.weight`, row), at.bias(`attention.${name}.bias`, row)]);
  const says = `One number of the ${name} is all ${x.length} numbers of the token, each times a number of W_${letter}, added up: how much the token has of what this row of W_${letter} asks for.`;
  return [...steps, ...linear(says, products(x, w, dimensionName, way), ["x", `W_${letter}`], bias)];
}

/** @param {Teller} at */
async function z(at) {
  const { dimension } = at.place;
  const [probs, values] = await Promise.all([at.headRow("probs"), at.ofHead("value")]);
  const width = values.length / probs.length;
  const own = Float32Array.from(probs, (_, key) => values[key * width + dimension]);
  const name = (/** @type {number} */ key) => `${tokenName(at.tokens, key)} (${key})`;
  const way = (/** @type {number} */ key) => ({ number: "", key });
  return [sumStep("mixture", "Weigh the values", "The values of all tokens, each times the weight with which this token looks there.", products(probs, own, name, way), ["weight", "value"])];
}

/** @param {Teller} at */
async function headOut(at) {
  const { head, dimension } = at.place;
  const [own, row] = await Promise.all([at.headRow("z"), at.weight("attention.output.weight", dimension)]);
  const w = row.subarray(head * own.length, (head + 1) * own.length);
  const says = `W_O turns the ${own.length} numbers of a head into ${at.source.shape.dModel}, as many as the stream has.`;
  return [sumStep("products", "Multiply and add up", says, products(own, w, dimensionName, to("z")), ["z", "W_O"])];
}

/** @param {Teller} at */
async function attnOut(at) {
  const { dimension } = at.place;
  const { heads, dHead } = at.source.shape;
  const [row, bias, ...own] = await Promise.all([
    at.weight("attention.output.weight", dimension),
    at.bias("attention.output.bias", dimension),
    ...Array.from({ length: heads }, (_, head) => at.headRow("z", head)),
  ]);
  const parts = own.map((one, head) => total(Array.from(one, (value, i) => value * row[head * dHead + i])));
  const terms = parts.map((value, head) => ({ name: `head ${head}`, factors: [], value, to: { number: "head_out", heads: [head], dimension } }));
  const says = `z of the ${heads} heads stand one behind the other: ${heads} × ${dHead} = ${heads * dHead} numbers. They are multiplied with W_O as one vector; each head's part of that sum is what it adds.`;
  return linear(says, terms, [], bias, "Concatenate, and multiply with W_O");
}

/**
 * resid_mid or resid_post.
 *
 * @param {Teller} at
 * @param {"attention" | "mlp"} part
 */
async function added(at, part) {
  const { dimension } = at.place;
  const [before, out] = part === "attention" ? ["resid_pre", "attn_out"] : ["resid_mid", "mlp_out"];
  const [stream, change] = await Promise.all([at.row(before), at.row(out)]);
  const way = part === "attention" ? at.entering : to("resid_mid");
  const terms = [
    { name: `${before}: the stream as it was`, factors: [], value: stream[dimension], to: way(dimension) },
    { name: `${out}: what ${part === "attention" ? "attention" : "the MLP"} adds`, factors: [], value: change[dimension], to: to(out)(dimension) },
  ];
  const sum = sumStep("sum", "Add to the stream", "Nothing is replaced: what was there stays, and something is added.", terms);
  if (at.built.norm === "before") return [sum];
  const x = Float32Array.from(stream, (value, i) => value + change[i]);
  const { weight, bias } = await at.norm(`${part}_norm`);
  return [sum, ...layerNormSteps({ x, dimension, weight, bias, eps: at.eps })];
}

/** @param {Teller} at */
async function neuron(at) {
  const { dimension } = at.place;
  const [{ x, steps, to: way }, w, bias] = await Promise.all([at.input("mlp"), at.weight("mlp.up.weight", dimension), at.bias("mlp.up.bias", dimension)]);
  const says = `Neuron ${dimension} has ${x.length} weights, one for each dimension of the token.`;
  return [...steps, ...linear(says, products(x, w, dimensionName, way), ["x", "W_in"], bias)];
}

/** @param {Teller} at */
async function mlpOut(at) {
  const { dimension } = at.place;
  const [post, w, bias] = await Promise.all([at.row("mlp_post"), at.weight("mlp.down.weight", dimension), at.bias("mlp.down.bias", dimension)]);
  const says = `All ${post.length} neurons add to this dimension, each as strongly as it fires times its weight.`;
  return linear(says, products(post, w, (i) => `neuron ${i}`, to("mlp_post")), ["mlp_post", "W_out"], bias);
}

