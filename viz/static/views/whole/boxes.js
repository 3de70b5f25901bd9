/**
 * The numbers of one token that the diagram shows.
 *
 * @typedef {object} Inside  of the layer that is open, by the names of its quantities
 * @property {Record<string, Float32Array>} one  of the token
 * @property {Record<string, Float32Array[]>} heads  of the token, of each head
 *
 * @typedef {object} Whole
 * @property {Example} example
 * @property {Built} built
 * @property {Source["shape"]} shape
 * @property {number} layer  the one that is open
 * @property {LayerStep[]} steps  its steps
 * @property {number} position
 * @property {Embedding} embedding
 * @property {Float32Array} embed
 * @property {Map<number, Float32Array>} after  resid_post of each layer
 * @property {Inside} inside
 * @property {Candidate[]} candidates
 *
 * @import { Example } from "../../core/data/example.js"
 * @import { Embedding } from "../../core/data/norms.js"
 * @import { Built, Candidate, LayerStep, Source } from "../../core/data/source.js"
 * @import { Box, Cells } from "./whole.js"
 */

import { farthest } from "../../core/data/softmax.js";
import { embeddingOf } from "../../core/data/norms.js";
import { grouping, reach } from "../../core/data/sharing.js";
import { headsAt, layerSteps, normName, rowAt } from "../../core/data/source.js";
import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/colors.js";
import { counted, written } from "../../core/text/numbers.js";
import { percent, tokenName, visible } from "../../core/text/text.js";
import { track } from "../../marks/cards.js";

/**
 * @param {Source} source
 * @param {Example} example
 * @param {{layer: number, position: number}} place
 * @returns {Promise<Whole>}
 */
export async function readWhole(source, example, { layer, position }) {
  const { shape } = source;
  const { built } = shape;
  const steps = layerSteps(built, layer).filter(({ between }) => !between);
  const named = (/** @type {boolean} */ ofHeads) => steps.filter(({ of }) => (of === "head" || of === "key") === ofHeads).map(({ id }) => id);
  const row = (/** @type {string} */ quantity, /** @type {number | null} */ of) => rowAt(source, quantity, of, position);
  const [embedding, embed, streams, stream, ofHeads, candidates] = await Promise.all([
    embeddingOf(source, example.tokens, position),
    row("embed", null),
    Promise.all(example.layers.map(async (one) => /** @type {[number, Float32Array]} */ ([one, await row("resid_post", one)]))),
    Promise.all(named(false).map(async (name) => [name, await row(name, layer)])),
    Promise.all(named(true).map(async (name) => [name, await headsAt(source, name, layer, position)])),
    shape.predicts === "none" ? [] : source.candidates(position),
  ]);
  return {
    example,
    built,
    shape,
    layer,
    steps: layerSteps(built, layer),
    position,
    embedding,
    embed,
    after: new Map(streams),
    inside: { one: Object.fromEntries(stream), heads: Object.fromEntries(ofHeads) },
    candidates,
  };
}

/** The length of a vector. @param {ArrayLike<number>} numbers */
function normOf(numbers) {
  return Math.sqrt(Array.from(numbers).reduce((sum, value) => sum + value * value, 0));
}

/**
 * @typedef {(whole: Whole, step: LayerStep) => Box[]} Make
 */

/** Groups of heads that are listed. */
const GROUPS = 4;

/** @type {Record<LayerStep["part"], string>} */
export const TITLES = { stream: "", attention: "Attention", mlp: "MLP" };

/** @type {Record<string, Make>} */
export const BOXES = {
  resid_pre: (whole) => [streamBox(whole, "resid_pre", whole.layer ? "what the layer below left" : "the embedding", whole.inside.one.resid_pre)],
  attention_input: between(({ built }) => (built.normKind === "rms" ? "a copy of the stream, set to a mean square of 1" : "a copy of the stream, set to mean 0 and variance 1")),
  value: vectorsBox,
  query: (whole) => (whole.built.rotary ? turnedBox(whole) : []),
  probs: probsBox,
  z: zBox,
  attn_out: attentionBox,
  attention_output: between(() => "what attention gives, normed before it is added"),
  resid_mid: addedBoxes,
  mlp_input: between(({ built }) => (built.parallel ? "a copy of the same stream: the MLP does not wait for attention" : "a copy of the stream, normed again")),
  mlp_pre: neuronsBox,
  mlp_post: firedBox,
  mlp_out: mlpBox,
  mlp_output: between(() => "what the MLP gives, normed before it is added"),
  resid_post: addedBoxes,
};

/** Where a number is worked out, and the view that does it. @param {string} number @param {number | null} [dimension] */
function workedOut(number, dimension = null) {
  return { way: { view: "arithmetic", number, dimension }, leads: "Arithmetic" };
}

/**
 * @param {string} id
 * @param {string} title
 * @param {string} says
 * @param {Cells[]} rows
 * @param {Partial<Box> & Pick<Box, "way" | "leads">} more
 * @returns {Box}
 */
function box(id, title, says, rows, more) {
  return { id, title, name: "", says, rows, ...more };
}

/**
 * A norm without numbers of its own, which leads to them.
 *
 * @param {string} number  that it makes
 * @param {string} title
 * @param {string} says
 * @returns {Box}
 */
function normBox(number, title, says) {
  return { id: number, title, name: "", says, kind: "norm", rows: [], ...workedOut(number) };
}

/** @param {(whole: Whole) => string} says @returns {Make} */
function between(says) {
  return (whole, { id, part }) => [{ ...normBox(id, normName(whole.built), says(whole)), id: id.endsWith("_input") ? `${part} norm` : `${part} output norm` }];
}

/** @param {Whole} whole @param {string} id @param {string} says @param {Float32Array} numbers @returns {Box} */
function streamBox({ layer, example }, id, says, numbers) {
  const entering = layer === example.layers[0] ? { number: "embed" } : { number: "resid_post", layer: layer - 1 };
  return {
    id, title: "Stream", name: id, says, kind: "stream",
    rows: [cells("", numbers)],
    fact: lengthOf(numbers),
    way: { view: "arithmetic", dimension: null, ...(id === "resid_pre" ? entering : { number: id }) },
    leads: "Arithmetic",
  };
}

/** A sum with the stream, with the norm that stands in the stream itself, and what it leaves. @type {Make} */
function addedBoxes(whole, { id, norm }) {
  const { built, inside, after, layer } = whole;
  const [part, what] = id === "resid_mid" ? ["attention", "attention"] : ["mlp", "the MLP"];
  const name = normName(built);
  const alone = built.parallel && id === "resid_mid" ? "the stream plus what attention added; the MLP does not read it" : "the stream plus what was added";
  const numbers = id === "resid_post" ? /** @type {Float32Array} */ (after.get(layer)) : inside.one[id];
  return [
    { id: `${part} sum`, title: norm ? `⊕ ${name}` : "⊕", name: "", says: `adds what ${what} gives`, kind: "sum", rows: [], way: { view: "arithmetic", number: id, dimension: null }, leads: "" },
    streamBox(whole, id, norm ? `the sum, then ${name}: it stands in the stream itself` : alone, numbers),
  ];
}

/** @param {string} name @param {Float32Array} numbers @returns {Cells} */
export function cells(name, numbers) {
  return { name, parts: [numbers], scale: scaleFor(numbers) };
}

/** @param {Float32Array} numbers */
function lengthOf(numbers) {
  return `length ${normOf(numbers).toFixed(1)}`;
}

/**
 * Rows of query, key or value. Where several heads share a key-value head they stand above it as a group.
 *
 * @param {Whole} whole
 * @param {[string, Float32Array[]][]} named
 * @returns {Cells[]}
 */
function headRows({ built, shape }, named) {
  const scale = scaleFor(...named.flatMap(([, parts]) => parts));
  const groups = built.keyHeads < shape.heads ? built.keyHeads : undefined;
  return named.map(([name, parts]) => ({ name, parts, scale, groups }));
}

/** @type {Make} */
function vectorsBox(whole) {
  const { inside, shape, built, example } = whole;
  const [query, key] = built.rotary ? ["query_unrotated", "key_unrotated"] : ["query", "key"];
  const { heads } = inside;
  const matrices = `Three matrices make three vectors of each token, ${shape.dHead} numbers in each of ${shape.heads} heads`;
  const normed = built.queryKeyNorm === "none" ? "" : ` Queries and keys go through ${normName(built)}, ${built.queryKeyNorm === "head" ? "each head's alone" : "those of all heads at once"}.`;
  const shared = built.keyHeads < shape.heads ? ` ${grouping(example)}` : "";
  const fact = built.keyHeads < shape.heads && built.keyHeads > 1 ? groupsOf(whole) : "";
  const rows = headRows(whole, [["q", heads[query]], ["k", heads[key]], ["v", heads.value]]);
  const leads = built.rotary ? workedOut("query_unrotated") : { way: { view: "neuron" }, leads: "Neuron" };
  return [box("vectors", "Query, key, value", `${matrices}.${normed}${shared}`, rows, { ...(fact && { fact }), ...leads })];
}

/** Which heads read which key-value head; of many groups the first. @param {Whole} whole */
function groupsOf({ built, shape }) {
  const size = shape.heads / built.keyHeads;
  const shown = Array.from({ length: Math.min(built.keyHeads, GROUPS) }, (_, own) => `heads ${own * size}–${(own + 1) * size - 1} read key-value head ${own}`);
  return `${shown.join(", ")}${built.keyHeads > GROUPS ? " …" : ""}`;
}

/** @param {Whole} whole @returns {Box[]} */
function turnedBox(whole) {
  const { query, key } = whole.inside.heads;
  const says = `Query and key are turned by where the token stands, position ${whole.position}: that is how the model knows the order of words.`;
  return [box("turned", "Turn", says, headRows(whole, [["q", query], ["k", key]]), { way: { view: "neuron" }, leads: "Neuron" })];
}

/** @type {Make} */
function probsBox({ inside, example, layer }) {
  const { probs } = inside.heads;
  const strongest = probs.map((row, i) => ({ head: example.heads[i], key: row.indexOf(Math.max(...row)), weight: Math.max(...row) }));
  const [most] = [...strongest].sort((one, other) => other.weight - one.weight);
  const { softCap, window } = example.looking(layer);
  const capped = softCap ? `, squeezed into −${written(softCap, 0)} to ${written(softCap, 0)}` : "";
  const within = window ? ` ${reach(window, example.causal)}` : "";
  const says = `query · key with every token, scaled${capped}, and a softmax: where each head looks.${within}`;
  const rows = probs.map((row, i) => ({ name: String(example.heads[i]), parts: [row], scale: 1, head: example.heads[i] }));
  const fact = `head ${most.head}: ${tokenName(example.keyTokens, most.key)} ${percent(most.weight)}`;
  return [box("probs", "Weights", says, rows, { name: "probs", fact, way: { view: "head", heads: example.heads }, leads: "Head" })];
}

/** @type {Make} */
function zBox({ inside: { heads: { z } } }) {
  return [box("z", "Mix values", "The values of all tokens, each times its weight, added up.", [{ name: "", parts: z, scale: scaleFor(...z) }], { name: "z", ...workedOut("z") })];
}

/** @type {Make} */
function attentionBox({ inside: { one: { attn_out: out } }, shape, built }) {
  const says = `z of ${shape.heads} heads side by side, times one matrix: what attention ${added(built)}.`;
  return [box("attn_out", "W_O", says, [cells("", out)], { name: "attn_out", fact: lengthOf(out), ...workedOut("attn_out") })];
}

/** What a branch does with what it makes: add it, or have it normed first. @param {Built} built */
function added({ norm }) {
  return norm === "output" || norm === "both" ? "gives" : "adds";
}

/** @type {Make} */
function neuronsBox({ inside: { one: { mlp_gate: gate, mlp_pre: pre, mlp_post: post } }, shape, built }) {
  const dimension = farthest(post);
  if (!built.gated) return [box("mlp_pre", "W_in", `${shape.dMlp} neurons read the token, each with weights of its own.`, [cells("", pre)], { name: "mlp_pre", ...workedOut("mlp_pre", dimension) })];
  const says = `${shape.dMlp} neurons read the token twice: W_gate says how far each opens, W_in what passes.`;
  return [box("mlp_pre", "W_gate, W_in", says, [cells("gate", gate), cells("in", pre)], workedOut("mlp_gate", dimension))];
}

/** @type {Make} */
function firedBox({ inside: { one: { mlp_post: post } }, built: { activation, gated } }) {
  const neuron = farthest(post);
  const says = gated ? `${activation} of the gate, times what W_in gives.` : `${activation} lets numbers above zero through and holds back the others.`;
  return [box("mlp_post", gated ? "Gate" : "Activation", says, [cells("", post)], { name: "mlp_post", fact: `the strongest: neuron ${neuron}, ${written(post[neuron], 2)}`, ...workedOut("mlp_post", neuron) })];
}

/** @type {Make} */
function mlpBox({ inside: { one: { mlp_out: out } }, built }) {
  const says = added(built) === "adds" ? "What the neurons add to the stream." : "What the neurons give together.";
  return [box("mlp_out", "W_out", says, [cells("", out)], { name: "mlp_out", fact: lengthOf(out), ...workedOut("mlp_out") })];
}

/** Tokens of the prediction that are listed. */
const LISTED = 5;

/**
 * The embedding, and the projection that may follow it.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function inputBoxes(whole) {
  const { embedding, embed, built, shape } = whole;
  const projected = `A matrix makes ${shape.dModel} numbers of these ${embedding.values.length}: as many as the stream has.`;
  return [
    tablesBox(whole, built.embedProject ? embedding.values : embed),
    ...(built.embedProject ? [embedBox("embed", "Projection", projected, [cells("", embed)], embed)] : []),
  ];
}

/** @param {Whole} whole @param {Float32Array} made  of the rows of the tables */
function tablesBox({ embedding: { rows }, built }, made) {
  const scale = scaleFor(...rows.map(({ numbers }) => numbers));
  const scaled = built.embedScale === 1 ? "" : `, times ${written(built.embedScale)}`;
  const sum = `${rows.map(({ name, row }) => `${name} (row ${row})`).join(" + ")}${scaled}${built.embedNorm ? `, then ${normName(built)}` : ""}`;
  const tables = rows.length > 1 ? "tables that were" : "a table that was";
  const last = built.embedNorm ? "normed" : rows.length > 1 ? "sum" : "scaled";
  const same = last === "scaled" && !scaled;
  const says = `Each token becomes ${made.length} numbers, looked up in ${tables} learned: ${sum}.`;
  const drawn = [...rows.map(({ name, numbers }) => ({ name, parts: [numbers], scale })), ...(same ? [] : [cells(last, made)])];
  return embedBox(built.embedProject ? "embed_input" : "embed", "Embedding", says, drawn, made);
}

/**
 * @param {string} number
 * @param {string} title
 * @param {string} says
 * @param {Cells[]} rows
 * @param {Float32Array} numbers  that it leaves
 * @returns {Box}
 */
function embedBox(number, title, says, rows, numbers) {
  const name = number === "embed" ? number : "";
  return { id: number, title, name, says, rows, fact: lengthOf(numbers), ...workedOut(number) };
}

/**
 * What stands behind the last layer: the last norm of a pre-norm model, the output head, the softmax.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function outputBoxes({ built, shape, candidates, example }) {
  if (!candidates.length) return [];
  const name = normName(built);
  const [best] = candidates;
  const asks = shape.predicts === "masked" ? "which token stands here" : "which token comes next";
  const capped = built.logitSoftCap ? `, squeezed into −${written(built.logitSoftCap, 0)} to ${written(built.logitSoftCap, 0)}` : "";
  return [
    ...(built.finalNorm && built.transform ? [normBox("hidden", `Last ${name}`, "What the output head reads: the stream, normed a last time.")] : []),
    {
      ...normBox("head_hidden", built.transform ? "Output head" : `Last ${name}`, `Makes the stream ready to be compared with the vocabulary: ${built.transform ? `a matrix, an activation and ${name} of its own` : `the last ${name}`}.`),
      id: "head",
      kind: built.transform ? "box" : "norm",
    },
    {
      id: "logits",
      title: "Prediction",
      name: "logits",
      says: `One logit for each of ${counted(shape.vocabulary, "token")}${capped}; the softmax makes probabilities of them: ${asks}${example.causal ? "" : ", as the model sees it"}.`,
      rows: [],
      more: [predictionBars(candidates)],
      ...workedOut("logits", best.id),
    },
  ];
}

/** @param {Candidate[]} candidates */
function predictionBars(candidates) {
  const bars = candidates.slice(0, LISTED).map(({ text, prob }) =>
    element("span", { class: "whole-bar" }, [
      element("bdi", {}, [visible(text.trim(), 18)]),
      track(prob, ""),
      element("data", { value: String(prob) }, [percent(prob)]),
    ]),
  );
  return element("span", { class: "whole-bars" }, bars);
}
