/** One layer of the diagram: closed, a strip of what it leaves; open, its parts as they are wired. */

import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/sign_colors.js";
import { written } from "../../core/text/numbers.js";
import { percent, tokenName } from "../../core/text/text.js";
import { paintCells } from "./box.js";
import { normOf } from "./read.js";

/**
 * @typedef {import("./box.js").Box} Box
 * @typedef {import("./read.js").Whole} Whole
 *
 * @typedef {object} Part  of an open layer, in the order of the data
 * @property {"stream" | "branch"} kind
 * @property {string} title
 * @property {Box[]} boxes
 */

/**
 * The bar of a layer, which opens it.
 *
 * @param {Whole} whole
 * @param {number} layer
 * @param {boolean} open
 * @param {() => "light" | "dark"} theme
 * @param {(change: import("./box.js").Way) => void} set
 */
export function layerHead(whole, layer, open, theme, set) {
  const after = /** @type {Float32Array} */ (whole.after.get(layer));
  const scale = streamScale(whole);
  const canvas = element("canvas", { "aria-hidden": "true" });
  const cells = element("span", { class: "whole-cells" }, [canvas]);
  const attributes = { type: "button", class: "whole-layer-head", "aria-expanded": String(open), "data-box": `layer ${layer}` };
  const opener = element("button", attributes, [
    element("span", { class: "whole-title" }, [`Layer ${layer}`]),
    element("span", { class: "whole-says" }, [open ? "attention, then the MLP; each adds to the stream" : "what it leaves in the stream"]),
    ...(open ? [] : [cells]),
  ]);
  opener.addEventListener("click", () => set({ layer }));
  const heads = element("button", { type: "button", class: "whole-all", "data-box": `model ${layer}` }, ["All heads →"]);
  heads.addEventListener("click", () => set({ view: "model", layer }));
  const root = element("div", { class: open ? "whole-bar-of open" : "whole-bar-of" }, open ? [opener, heads] : [opener]);
  return { root, paint: () => !open && paintCells(canvas, [{ name: "", parts: [after], scale }], theme()) };
}

/** One scale for the stream in all layers, so that it can be seen to grow. @param {Whole} whole */
function streamScale({ embed, after }) {
  return scaleFor(embed, ...after.values());
}

/**
 * The parts of the open layer. Pre-norm: LayerNorm stands at the start of each branch. Post-norm: it
 * stands in the stream, behind each sum.
 *
 * @param {Whole} whole
 * @returns {Part[]}
 */
export function layerParts(whole) {
  const { built, inside, layer } = whole;
  const before = built.norm === "before";
  const stream = (/** @type {string} */ id, /** @type {string} */ says, /** @type {Float32Array} */ numbers, /** @type {import("./box.js").Way} */ way) =>
    /** @type {Box} */ ({
      id, title: "Stream", name: id, says, kind: "stream",
      rows: [{ name: "", parts: [numbers], scale: scaleFor(numbers) }],
      fact: `length ${normOf(numbers).toFixed(1)}`,
      way: { view: "arithmetic", dimension: null, ...way },
      leads: "Arithmetic",
    });
  const from = layer === whole.example.layers[0] ? { number: "embed" } : { number: "resid_post", layer: layer - 1 };
  const sum = before ? "the stream plus what was added" : "the sum, then LayerNorm: it stands in the stream itself";
  return [
    { kind: "stream", title: "", boxes: [stream("resid_pre", layer ? "what the layer below left" : "the embedding", inside.resid_pre, from)] },
    { kind: "branch", title: "Attention", boxes: [...(before ? [normBox("attention", "a copy of the stream, set to mean 0 and variance 1")] : []), ...attentionBoxes(whole)] },
    { kind: "stream", title: "", boxes: [sumBox("attention", before), stream("resid_mid", sum, inside.resid_mid, { number: "resid_mid" })] },
    { kind: "branch", title: "MLP", boxes: [...(before ? [normBox("mlp", "a copy of the stream, normed again")] : []), ...mlpBoxes(whole)] },
    { kind: "stream", title: "", boxes: [sumBox("mlp", before), stream("resid_post", sum, /** @type {Float32Array} */ (whole.after.get(layer)), { number: "resid_post" })] },
  ];
}

/**
 * LayerNorm at the start of a branch.
 *
 * @param {"attention" | "mlp"} part
 * @param {string} says
 * @returns {Box}
 */
function normBox(part, says) {
  return { id: `${part} norm`, title: "LayerNorm", name: "", says, kind: "norm", rows: [], way: { view: "arithmetic", number: `${part}_input`, dimension: null }, leads: "Arithmetic" };
}

/**
 * @param {"attention" | "mlp"} part
 * @param {boolean} before  LayerNorm stands before, and not here
 * @returns {Box}
 */
function sumBox(part, before) {
  const number = part === "attention" ? "resid_mid" : "resid_post";
  const what = part === "attention" ? "attention" : "the MLP";
  const title = before ? "⊕" : "⊕ LayerNorm";
  return { id: `${part} sum`, title, name: "", says: `adds what ${what} gives`, kind: "sum", rows: [], way: { view: "arithmetic", number, dimension: null }, leads: "" };
}

/**
 * @param {Whole} whole
 * @returns {Box[]}
 */
function attentionBoxes({ inside, shape, example }) {
  const { query, key, value, probs, z, attn_out: out } = inside;
  const strongest = probs.map((row, i) => ({ head: example.heads[i], key: row.indexOf(Math.max(...row)), weight: Math.max(...row) }));
  const [most] = [...strongest].sort((one, other) => other.weight - one.weight);
  const scale = scaleFor(...query, ...key, ...value);
  const count = `${shape.heads} heads`;
  return [
    {
      id: "vectors", title: "Query, key, value", name: "",
      says: `Three matrices make three vectors of each token, ${shape.dHead} numbers in each of ${count}.`,
      rows: [{ name: "q", parts: query, scale }, { name: "k", parts: key, scale }, { name: "v", parts: value, scale }],
      way: { view: "neuron" }, leads: "Neuron",
    },
    {
      id: "probs", title: "Weights", name: "probs",
      says: "query · key with every token, scaled, and a softmax: where each head looks.",
      rows: probs.map((row, i) => ({ name: String(example.heads[i]), parts: [row], scale: 1, head: example.heads[i] })),
      fact: `head ${most.head}: ${tokenName(example.keyTokens, most.key)} ${percent(most.weight)}`,
      way: { view: "head", heads: example.heads }, leads: "Head",
    },
    {
      id: "z", title: "Mix values", name: "z",
      says: "The values of all tokens, each times its weight, added up.",
      rows: [{ name: "", parts: z, scale: scaleFor(...z) }],
      way: { view: "arithmetic", number: "z", dimension: null }, leads: "Arithmetic",
    },
    {
      id: "attn_out", title: "W_O", name: "attn_out",
      says: `z of ${count} side by side, times one matrix: what attention adds.`,
      rows: [{ name: "", parts: [out], scale: scaleFor(out) }],
      fact: `length ${normOf(out).toFixed(1)}`,
      way: { view: "arithmetic", number: "attn_out", dimension: null }, leads: "Arithmetic",
    },
  ];
}

/**
 * @param {Whole} whole
 * @returns {Box[]}
 */
function mlpBoxes({ inside, shape, built }) {
  const { mlp_pre: pre, mlp_post: post, mlp_out: out } = inside;
  const neuron = post.reduce((best, value, i) => (Math.abs(value) > Math.abs(post[best]) ? i : best), 0);
  return [
    {
      id: "mlp_pre", title: "W_in", name: "mlp_pre",
      says: `${shape.dMlp} neurons read the token, each with weights of its own.`,
      rows: [{ name: "", parts: [pre], scale: scaleFor(pre) }],
      way: { view: "arithmetic", number: "mlp_pre", dimension: neuron }, leads: "Arithmetic",
    },
    {
      id: "mlp_post", title: "Activation", name: "mlp_post",
      says: `${built.activation} lets numbers above zero through and holds back the others.`,
      rows: [{ name: "", parts: [post], scale: scaleFor(post) }],
      fact: `the strongest: neuron ${neuron}, ${written(post[neuron], 2)}`,
      way: { view: "arithmetic", number: "mlp_post", dimension: neuron }, leads: "Arithmetic",
    },
    {
      id: "mlp_out", title: "W_out", name: "mlp_out",
      says: "What the neurons add to the stream.",
      rows: [{ name: "", parts: [out], scale: scaleFor(out) }],
      fact: `length ${normOf(out).toFixed(1)}`,
      way: { view: "arithmetic", number: "mlp_out", dimension: null }, leads: "Arithmetic",
    },
  ];
}

