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
import { percent, tokenName } from "../../core/text/text.js";
import { predicted } from "../../marks/cards.js";

/** @param {Source} source @param {Example} example @param {{layer: number, position: number}} place @returns {Promise<Whole>} */
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

/** Groups of heads that are listed. */
const GROUPS = 4;

/** @type {Record<LayerStep["part"], string>} */
export const TITLES = { stream: "", attention: "Attention", mlp: "MLP" };

/** What a branch does with what it makes: add it, or have it normed first. @param {Built} built */
const adds = ({ norm }) => norm === "before" || norm === "after";

/** The boxes of each step of a layer. @type {Record<string, (whole: Whole, step: LayerStep) => Box[]>} */
export const BOXES = {
  resid_pre: (whole) => [streamBox(whole, "resid_pre", whole.layer ? "what the layer below left" : "the embedding", whole.inside.one.resid_pre)],
  attention_input: ({ built }) => [
    normBox("attention_input", normName(built), built.normKind === "rms" ? "a copy of the stream, set to a mean square of 1" : "a copy of the stream, set to mean 0 and variance 1", "attention norm"),
  ],
  value(whole) {
    const { inside: { heads }, shape, built, example } = whole;
    const [query, key] = built.rotary ? ["query_unrotated", "key_unrotated"] : ["query", "key"];
    const matrices = `Three matrices make three vectors of each token, ${shape.dHead} numbers in each of ${shape.heads} heads.`;
    const normed = built.queryKeyNorm === "none" ? "" : ` Queries and keys go through ${normName(built)}, ${built.queryKeyNorm === "head" ? "each head's alone" : "those of all heads at once"}.`;
    const shared = built.keyHeads < shape.heads ? ` ${grouping(example)}` : "";
    const fact = built.keyHeads < shape.heads && built.keyHeads > 1 ? groupsOf(whole) : undefined;
    const rows = headRows(whole, [["q", heads[query]], ["k", heads[key]], ["v", heads.value]]);
    return [box("vectors", "Query, key, value", `${matrices}${normed}${shared}`, rows, { name: "", fact, ...(built.rotary ? workedOut("query_unrotated") : NEURON) })];
  },
  query(whole) {
    const { built, position, inside: { heads } } = whole;
    const says = `Query and key are turned by where the token stands, position ${position}: that is how the model knows the order of words.`;
    return built.rotary ? [box("turned", "Turn", says, headRows(whole, [["q", heads.query], ["k", heads.key]]), { name: "", ...NEURON })] : [];
  },
  probs({ inside: { heads: { probs } }, example, layer }) {
    const { heads, keyTokens, causal } = example;
    const strongest = probs.map((row, i) => ({ head: heads[i], key: row.indexOf(Math.max(...row)), weight: Math.max(...row) }));
    const [most] = strongest.sort((one, other) => other.weight - one.weight);
    const { softCap, window } = example.looking(layer);
    const capped = softCap ? `, squeezed into −${written(softCap, 0)} to ${written(softCap, 0)}` : "";
    const says = `query · key with every token, scaled${capped}, and a softmax: where each head looks.${window ? ` ${reach(window, causal)}` : ""}`;
    const rows = probs.map((row, i) => ({ name: String(heads[i]), parts: [row], scale: 1, head: heads[i] }));
    const fact = `head ${most.head}: ${tokenName(keyTokens, most.key)} ${percent(most.weight)}`;
    return [box("probs", "Weights", says, rows, { fact, way: { view: "head", heads }, leads: "Head" })];
  },
  z: ({ inside: { heads: { z } } }) => [box("z", "Mix values", "The values of all tokens, each times its weight, added up.", [{ name: "", parts: z, scale: scaleFor(...z) }])],
  attn_out: ({ inside: { one: { attn_out: out } }, shape, built }) => [
    box("attn_out", "W_O", `z of ${shape.heads} heads side by side, times one matrix: ${adds(built) ? "what attention adds" : "what attention gives"}.`, [cells("", out)], { fact: lengthOf(out) }),
  ],
  attention_output: ({ built }) => [normBox("attention_output", normName(built), "what attention gives, normed before it is added", "attention output norm")],
  resid_mid: addedBoxes,
  mlp_input: ({ built }) => [
    normBox("mlp_input", normName(built), built.parallel ? "a copy of the same stream: the MLP does not wait for attention" : "a copy of the stream, normed again", "mlp norm"),
  ],
  mlp_pre({ inside: { one: { mlp_gate: gate, mlp_pre: pre, mlp_post: post } }, shape: { dMlp }, built }) {
    const strongest = farthest(post);
    if (!built.gated) return [box("mlp_pre", "W_in", `${dMlp} neurons read the token, each with weights of its own.`, [cells("", pre)], workedOut("mlp_pre", strongest))];
    const says = `${dMlp} neurons read the token twice: W_gate says how far each opens, W_in what passes.`;
    return [box("mlp_pre", "W_gate, W_in", says, [cells("gate", gate), cells("in", pre)], { name: "", ...workedOut("mlp_gate", strongest) })];
  },
  mlp_post({ inside: { one: { mlp_post: post } }, built: { activation, gated } }) {
    const neuron = farthest(post);
    const says = gated ? `${activation} of the gate, times what W_in gives.` : `${activation} lets numbers above zero through and holds back the others.`;
    return [box("mlp_post", gated ? "Gate" : "Activation", says, [cells("", post)], { fact: `the strongest: neuron ${neuron}, ${written(post[neuron], 2)}`, ...workedOut("mlp_post", neuron) })];
  },
  mlp_out: ({ inside: { one: { mlp_out: out } }, built }) => [
    box("mlp_out", "W_out", adds(built) ? "What the neurons add to the stream." : "What the neurons give together.", [cells("", out)], { fact: lengthOf(out) }),
  ],
  mlp_output: ({ built }) => [normBox("mlp_output", normName(built), "what the MLP gives, normed before it is added", "mlp output norm")],
  resid_post: addedBoxes,
};

/** The view of query and key, cell by cell. */
const NEURON = { way: { view: "neuron" }, leads: "Neuron" };

/** Where a number is worked out, and the view that does it. @param {string} number @param {number | null} [dimension] */
function workedOut(number, dimension = null) {
  return { way: { view: "arithmetic", number, dimension }, leads: "Arithmetic" };
}

/** The box of a quantity, which leads to its arithmetic. @param {string} id @param {string} title @param {string} says @param {Cells[]} rows @param {Partial<Box>} [more] @returns {Box} */
function box(id, title, says, rows, more = {}) {
  return { id, title, name: id, says, rows, ...workedOut(id), ...more };
}

/** A norm without numbers of its own, which leads to them. @param {string} number  that it makes @param {string} title @param {string} says @param {string} [id] @returns {Box} */
function normBox(number, title, says, id = number) {
  return box(number, title, says, [], { id, name: "", kind: "norm" });
}

/** @param {Whole} whole @param {string} id @param {string} says @param {Float32Array} numbers @returns {Box} */
function streamBox({ layer, example }, id, says, numbers) {
  const entering = layer === example.layers[0] ? { number: "embed" } : { number: "resid_post", layer: layer - 1 };
  const way = { view: "arithmetic", dimension: null, ...(id === "resid_pre" ? entering : { number: id }) };
  return box(id, "Stream", says, [cells("", numbers)], { kind: "stream", fact: lengthOf(numbers), way });
}

/** A sum with the stream, with the norm that stands in the stream itself, and what it leaves. @param {Whole} whole @param {LayerStep} step */
function addedBoxes(whole, { id, norm }) {
  const { built, inside, after, layer } = whole;
  const [part, what] = id === "resid_mid" ? ["attention", "adds what attention gives"] : ["mlp", "adds what the MLP gives"];
  const name = normName(built);
  const alone = built.parallel && id === "resid_mid" ? "the stream plus what attention added; the MLP does not read it" : "the stream plus what was added";
  const numbers = id === "resid_post" ? /** @type {Float32Array} */ (after.get(layer)) : inside.one[id];
  return [
    box(id, norm ? `⊕ ${name}` : "⊕", what, [], { id: `${part} sum`, name: "", kind: "sum", leads: "" }),
    streamBox(whole, id, norm ? `the sum, then ${name}: it stands in the stream itself` : alone, numbers),
  ];
}

/** @param {string} name @param {Float32Array} numbers @returns {Cells} */
function cells(name, numbers) {
  return { name, parts: [numbers], scale: scaleFor(numbers) };
}

/** @param {Float32Array} numbers */
function lengthOf(numbers) {
  return `length ${Math.hypot(...numbers).toFixed(1)}`;
}

/** Rows of query, key or value. Where several heads share a key-value head they stand above it as a group. @param {Whole} whole @param {[string, Float32Array[]][]} named @returns {Cells[]} */
function headRows({ built, shape }, named) {
  const scale = scaleFor(...named.flatMap(([, parts]) => parts));
  const groups = built.keyHeads < shape.heads ? built.keyHeads : undefined;
  return named.map(([name, parts]) => ({ name, parts, scale, groups }));
}

/** Which heads read which key-value head; of many groups the first. @param {Whole} whole */
function groupsOf({ built, shape }) {
  const size = shape.heads / built.keyHeads;
  const shown = Array.from({ length: Math.min(built.keyHeads, GROUPS) }, (_, own) => `heads ${own * size}–${(own + 1) * size - 1} read key-value head ${own}`);
  return `${shown.join(", ")}${built.keyHeads > GROUPS ? " …" : ""}`;
}

/** Tokens of the prediction that are listed. */
const LISTED = 5;

/** The embedding, and the projection that may follow it. @param {Whole} whole */
export function inputBoxes({ embedding: { rows, values }, embed, built, shape }) {
  const made = built.embedProject ? values : embed;
  const scale = scaleFor(...rows.map(({ numbers }) => numbers));
  const scaled = built.embedScale === 1 ? "" : `, times ${written(built.embedScale)}`;
  const sum = `${rows.map(({ name, row }) => `${name} (row ${row})`).join(" + ")}${scaled}${built.embedNorm ? `, then ${normName(built)}` : ""}`;
  const tables = rows.length > 1 ? "tables that were" : "a table that was";
  const last = built.embedNorm ? "normed" : rows.length > 1 ? "sum" : "scaled";
  const says = `Each token becomes ${made.length} numbers, looked up in ${tables} learned: ${sum}.`;
  const drawn = [...rows.map(({ name, numbers }) => ({ name, parts: [numbers], scale })), ...(last === "scaled" && !scaled ? [] : [cells(last, made)])];
  if (!built.embedProject) return [box("embed", "Embedding", says, drawn, { fact: lengthOf(made) })];
  const projected = `A matrix makes ${shape.dModel} numbers of these ${values.length}: as many as the stream has.`;
  return [
    box("embed_input", "Embedding", says, drawn, { name: "", fact: lengthOf(made) }),
    box("embed", "Projection", projected, [cells("", embed)], { fact: lengthOf(embed) }),
  ];
}

/** What stands behind the last layer: the last norm of a pre-norm model, the output head, the softmax. @param {Whole} whole */
export function outputBoxes({ built, shape, candidates, example }) {
  if (!candidates.length) return [];
  const name = normName(built);
  const asks = shape.predicts === "masked" ? "which token stands here" : "which token comes next";
  const capped = built.logitSoftCap ? `, squeezed into −${written(built.logitSoftCap, 0)} to ${written(built.logitSoftCap, 0)}` : "";
  const head = built.transform ? `a matrix, an activation and ${name} of its own` : `the last ${name}`;
  const says = `One logit for each of ${counted(shape.vocabulary, "1 token", " tokens")}${capped}; the softmax makes probabilities of them: ${asks}${example.causal ? "" : ", as the model sees it"}.`;
  const bars = element("span", { class: "whole-bars" }, candidates.slice(0, LISTED).map((one) => element("span", { class: "whole-bar" }, predicted(one))));
  return [
    ...(built.finalNorm && built.transform ? [normBox("hidden", `Last ${name}`, "What the output head reads: the stream after the last norm.")] : []),
    box("head_hidden", built.transform ? "Output head" : `Last ${name}`, `Makes the stream ready to be compared with the vocabulary: ${head}.`, [], { id: "head", name: "", kind: built.transform ? "box" : "norm" }),
    box("logits", "Prediction", says, [], { more: [bars], ...workedOut("logits", candidates[0].id) }),
  ];
}
