/**
 * What a page before a model has more than one without: any quantity of a run, the model's weights,
 * other texts. Views that need it say so where an example has none.
 *
 * @typedef {object} Built  the choices that a model is built of, by layers/config.py
 * @property {"before" | "after" | "output" | "both"} norm  where a norm stands: before attention and MLP, after
 *   each sum with the stream, behind attention and MLP before the sum, or before and behind
 * @property {"layer" | "rms"} normKind
 * @property {boolean} plusOne  norms multiply by 1 + weight
 * @property {boolean} firstNorm  the first layer has a norm before attention
 * @property {number} eps  of norms
 * @property {boolean} parallel  the MLP reads the stream that attention reads
 * @property {number} keyHeads  of keys and values; several heads may share one
 * @property {"none" | "head" | "width"} queryKeyNorm  queries and keys go through a norm: of each head, of all
 * @property {boolean} rotary  queries and keys are turned by position
 * @property {boolean} gated  the MLP is (activation(x·W_gate) · x·W_in)·W_out
 * @property {string} activation  of the MLP, by its name in Python
 * @property {string} headActivation  of the output head's own matrix
 * @property {number} embedScale  of the rows of the word table
 * @property {boolean} positions  embeddings of positions are added
 * @property {number} positionOffset  rows at the beginning of their table that no position has
 * @property {boolean} segments  embeddings of segments are added
 * @property {boolean} embedNorm  a norm follows the sum of the embeddings
 * @property {boolean} embedProject  a matrix follows, which makes them as wide as the stream
 * @property {boolean} finalNorm  a norm stands behind the last layer
 * @property {boolean} transform  the output head begins with a linear layer, an activation, a norm
 * @property {number | null} logitSoftCap  logits are squeezed into -cap to cap
 *
 * @typedef {object} Shape  of a model
 * @property {string} family
 * @property {number} layers
 * @property {number} heads
 * @property {number} dHead
 * @property {number} dModel
 * @property {number} dMlp
 * @property {number} vocabulary  ids
 * @property {"masked" | "causal" | "none"} predicts  which tokens
 * @property {Built} built
 * @property {[string, number] | null} [features]  a quantity and its layer, which features are parts of
 *
 * @typedef {object} Numbers
 * @property {number[]} shape  without the batch
 * @property {Float32Array} values
 *
 * @typedef {object} Candidate
 * @property {number} id
 * @property {string} text  as a person reads it
 * @property {number} logit
 * @property {number} prob
 *
 * @typedef {object} Source
 * @property {Shape} shape
 * @property {number[]} ids  of the tokens
 * @property {number | null} predicted  the position whose prediction the page is about
 * @property {(quantity: string, layer: number | null) => Promise<Numbers>} read
 * @property {(name: string, layer: number | null, row: number | null) => Promise<Numbers | null>} weights
 * @property {(position: number) => Promise<Candidate[]>} candidates  the most probable first
 * @property {(position: number) => Promise<Named>} features  what they, and what they leave, are at a position
 * @property {(tokens: Tokens, vectors: Vectors, asked: Asked, features: boolean) => Promise<Reason>} reason  of a score
 *
 * @typedef {Numbers & {names: string[]}} Named  vectors (part, width), whose sum is the place's own
 *
 * @import { Tokens } from "./data.js"
 * @import { Vectors } from "./example.js"
 * @import { Asked, Reason } from "./reasons.js"
 */

/**
 * A weight of the model, or one row of it, that it is known to have.
 *
 * @param {Source} source
 * @param {string} name
 * @param {number | null} layer
 * @param {number | null} row
 */
export async function weightOf(source, name, layer, row) {
  const found = await source.weights(name, layer, row);
  if (!found) throw new RangeError(`this model has no weight ${name}`);
  return found.values;
}

/**
 * How a layer is wired: its steps in the order of the data, from the choices of its model. They are the
 * table of layers/layer.py, name for name, with the norms that stand between its quantities.
 *
 * @typedef {object} LayerStep
 * @property {string} id
 * @property {"stream" | "attention" | "mlp"} part
 * @property {"model" | "head" | "key" | "mlp"} of  its last axis
 * @property {string[]} reads  the steps that it is made of
 * @property {string} norm  the name of the norm that it ends with; empty: none
 * @property {boolean} between  it is that norm and nothing else: the engine has no name for it
 */

/**
 * @param {string} id
 * @param {LayerStep["part"]} part
 * @param {LayerStep["of"]} of
 * @param {string[]} reads
 * @param {string} [norm]
 * @returns {LayerStep}
 */
function step(id, part, of, reads, norm = "") {
  return { id, part, of, reads, norm, between: false };
}

/** @param {string} id @param {"attention" | "mlp"} part @param {string} read @param {string} norm @returns {LayerStep[]} */
function between(id, part, read, norm) {
  return [{ id, part, of: "model", reads: [read], norm, between: true }];
}

/** @param {Built} built @param {number} layer @returns {LayerStep[]} */
export function layerSteps(built, layer) {
  const { norm, parallel, firstNorm } = built;
  const before = norm === "before" || norm === "both";
  const behind = norm === "output" || norm === "both";
  const after = (/** @type {string} */ name) => (norm === "after" ? name : "");
  const stream = parallel ? "resid_pre" : "resid_mid";
  const [ofAttention, ofMlp] = [before && (layer > 0 || firstNorm), before];
  const [fromAttention, fromMlp] = behind ? ["attention_output", "mlp_output"] : ["attn_out", "mlp_out"];
  const middle = step("resid_mid", "stream", "model", ["resid_pre", fromAttention], after("attention_norm"));
  return [
    step("resid_pre", "stream", "model", []),
    ...(ofAttention ? between("attention_input", "attention", "resid_pre", "attention_norm") : []),
    ...headSteps(built, ofAttention ? "attention_input" : "resid_pre"),
    ...(behind ? between("attention_output", "attention", "attn_out", "attention_output_norm") : []),
    ...(parallel ? [] : [middle]),
    ...(ofMlp ? between("mlp_input", "mlp", stream, "mlp_norm") : []),
    ...mlpSteps(built, ofMlp ? "mlp_input" : stream),
    ...(behind ? between("mlp_output", "mlp", "mlp_out", "mlp_output_norm") : []),
    ...(parallel ? [middle] : []),
    step("resid_post", "stream", "model", ["resid_mid", fromMlp], after("mlp_norm")),
  ];
}

/** @param {Built} built @param {string} x  what W_Q, W_K and W_V read */
function headSteps({ rotary, queryKeyNorm }, x) {
  const norm = (/** @type {string} */ name) => (queryKeyNorm === "none" ? "" : `attention.${name}_norm`);
  const made = rotary ? "_unrotated" : "";
  return [
    step(`query${made}`, "attention", "head", [x], norm("query")),
    step(`key${made}`, "attention", "head", [x], norm("key")),
    step("value", "attention", "head", [x]),
    ...(rotary ? ["query", "key"].map((name) => step(name, "attention", "head", [name + made])) : []),
    step("probs", "attention", "key", ["query", "key"]),
    step("z", "attention", "head", ["probs", "value"]),
    step("attn_out", "attention", "model", ["z"]),
  ];
}

/** @param {Built} built @param {string} x  what W_in and W_gate read */
function mlpSteps({ gated }, x) {
  return [
    ...(gated ? [step("mlp_gate", "mlp", "mlp", [x])] : []),
    step("mlp_pre", "mlp", "mlp", [x]),
    step("mlp_post", "mlp", "mlp", gated ? ["mlp_gate", "mlp_pre"] : ["mlp_pre"]),
    step("mlp_out", "mlp", "model", ["mlp_post"]),
  ];
}

/** A quantity (position, …) at one position. @param {Pick<Source, "read">} source @param {string} quantity @param {number | null} layer @param {number} position */
export async function rowAt(source, quantity, layer, position) {
  const { shape: [positions], values } = await source.read(quantity, layer);
  const width = values.length / positions;
  return values.subarray(position * width, (position + 1) * width);
}

/** A quantity (head, position, …) at one position, of each head. @param {Pick<Source, "read">} source @param {string} quantity @param {number} layer @param {number} position */
export async function headsAt(source, quantity, layer, position) {
  const { shape: [heads, positions, width], values } = await source.read(quantity, layer);
  return Array.from({ length: heads }, (_, head) => {
    const from = (head * positions + position) * width;
    return values.subarray(from, from + width);
  });
}

/** What the norms of a model are called. @param {Pick<Built, "normKind">} built */
export function normName({ normKind }) {
  return normKind === "rms" ? "RMSNorm" : "LayerNorm";
}
