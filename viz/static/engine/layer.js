/**
 * A layer is one table: every quantity in the order of the data, each declared once. This is the
 * table of layers/layer.py, name for name.
 *
 * A declaration is a function of the quantities before it. `LayerPass` evaluates the table for one
 * layer of one pass: a forward pass asks for resid_post; a read asks for one quantity later; an edit
 * replaces a value on the way; a rerun begins with what is known.
 *
 * @typedef {import("./tensor.js").Tensor} Tensor
 * @typedef {(value: Tensor) => Tensor} Change
 *
 * @typedef {object} Quantity
 * @property {string[]} axes  without the batch
 * @property {string} says  its formula in words
 * @property {(at: At) => Tensor} compute
 *
 * @typedef {"resid_pre" | "query_unrotated" | "key_unrotated" | "query" | "key" | "value" | "scores" | "probs"
 *   | "z" | "head_out" | "attn_out" | "resid_mid" | "mlp_gate" | "mlp_pre" | "mlp_post" | "mlp_out"
 *   | "resid_post"} Name
 * @typedef {LayerPass & Record<Name, Tensor>} At  one layer of one pass
 */

import { attentionProbs, attentionScores, weightedValues } from "./attention.js";
import { joined, rowOf, rowsFrom } from "./tensor.js";

const STREAM_AXES = ["position", "d_model"];
const HEAD_AXES = ["head", "position", "d_head"];
const KEY_AXES = ["kv_head", "position", "d_head"];
const MATRIX_AXES = ["head", "query", "key"];
const MLP_AXES = ["position", "d_mlp"];

/**
 * @param {string[]} axes
 * @param {string} says
 * @param {(at: At) => Tensor} compute
 * @returns {Quantity}
 */
function quantity(axes, says, compute) {
  return { axes, says, compute };
}

/** @type {Record<Name, Quantity>} */
export const LAYER_QUANTITIES = {
  resid_pre: quantity(STREAM_AXES, "the stream before attention", (at) => at.entering),

  query_unrotated: quantity(HEAD_AXES, "x·W_Q + b_Q before its rotation", (at) => at.attention.project("query", at.attentionInput)),

  key_unrotated: quantity(KEY_AXES, "x·W_K + b_K before its rotation", (at) => at.attention.project("key", at.attentionInput)),

  query: quantity(HEAD_AXES, "x·W_Q + b_Q, x = resid_pre (pre-norm: its norm); rotary: query_unrotated turned", (at) =>
    at.attention.rotary ? at.attention.turned(at.query_unrotated, at.first) : at.attention.project("query", at.attentionInput),
  ),

  key: quantity(KEY_AXES, "x·W_K + b_K; rotary: key_unrotated turned", (at) =>
    at.attention.rotary ? at.attention.turned(at.key_unrotated, at.first) : at.attention.project("key", at.attentionInput),
  ),

  value: quantity(KEY_AXES, "x·W_V + b_V", (at) => at.attention.project("value", at.attentionInput)),

  scores: quantity(MATRIX_AXES, "query·key / sqrt(d_head), before soft cap and mask", (at) =>
    attentionScores(at.query, at.key, at.attention.scale),
  ),

  probs: quantity(MATRIX_AXES, "softmax of the masked scores over keys; 0 where masked", (at) =>
    attentionProbs(at.scores, at.attention.looking),
  ),

  z: quantity(HEAD_AXES, "probs·value", (at) => weightedValues(at.probs, at.value)),

  head_out: quantity(["head", "position", "d_model"], "z·W_O of that head", (at) => at.attention.headOut(at.z)),

  attn_out: quantity(STREAM_AXES, "sum of head_out over heads + b_O", (at) =>
    at.given("head_out") ? at.attention.sumOfHeads(at.head_out) : at.attention.attnOut(at.z),
  ),

  resid_mid: quantity(STREAM_AXES, "resid_pre + attn_out (post-norm: its norm)", (at) =>
    at.layer.afterAttention(at.resid_pre, at.attn_out),
  ),

  mlp_gate: quantity(MLP_AXES, "x·W_gate + b_gate, x as in mlp_pre", (at) => at.layer.mlp.gateOf(at.mlpInput)),

  mlp_pre: quantity(MLP_AXES, "x·W_in + b_in, x = resid_mid (pre-norm: its norm; parallel: that of resid_pre)", (at) =>
    at.layer.mlp.up.forward(at.mlpInput.values),
  ),

  mlp_post: quantity(MLP_AXES, "activation(mlp_pre); gated: activation(mlp_gate) · mlp_pre", (at) =>
    at.layer.mlp.post(at.mlp_pre, at.layer.mlp.gate ? at.mlp_gate : null),
  ),

  mlp_out: quantity(STREAM_AXES, "mlp_post·W_out + b_out", (at) => at.layer.mlp.down.forward(at.mlp_post.values)),

  resid_post: quantity(STREAM_AXES, "resid_mid + mlp_out (post-norm: its norm)", (at) => at.layer.afterMlp(at.resid_mid, at.mlp_out)),
};

const NAMES = /** @type {Name[]} */ (Object.keys(LAYER_QUANTITIES));
/** What a longer text takes from a shorter one: what is multiplied by weights on the way to resid_post. */
const CONTINUED = /** @type {Name[]} */ (["query", "key", "value", "resid_post"]);

/** @typedef {{count: number, computed: Partial<Record<string, Tensor>>}} Past  of a layer where no query sees a key behind it: what is known of as many positions in front */

/** One layer of one pass: what is known of it, resid_pre at least, and the table for the rest. */
export class LayerPass {
  /**
   * @param {import("./parts.js").Layer} layer
   * @param {object} pass
   * @param {Tensor} pass.entering  resid_pre, before an edit of it
   * @param {Map<string, Change>} pass.edits  what changes a quantity, by its name
   * @param {Partial<Record<string, Tensor>>} [pass.settled]  values from before, edits of them made
   * @param {Past} [pass.past]  of a pass without edits, as this one is
   * @param {number} [pass.first]  where the first of its positions stands
   */
  constructor(layer, { entering, edits, settled = {}, past, first = 0 }) {
    this.layer = layer;
    this.attention = layer.attention;
    this.entering = entering;
    this.edits = edits;
    this.past = past;
    this.first = first;
    /** @type {Partial<Record<string, Tensor>>} */
    this.computed = { ...settled };
  }

  /**
   * The value here: known, or computed; then changed, where there is an edit of it.
   *
   * @param {Name} name
   * @returns {Tensor}
   */
  read(name) {
    const known = this.computed[name];
    if (known) return known;
    const value = this.continued(name) ?? LAYER_QUANTITIES[name].compute(/** @type {At} */ (/** @type {unknown} */ (this)));
    const change = this.edits.get(name);
    return (this.computed[name] = change ? change(value) : value);
  }

  /**
   * What is known of the positions in front, and the others computed; null where nothing is known.
   *
   * @param {Name} name
   */
  continued(name) {
    const known = CONTINUED.includes(name) ? this.past?.computed[name] : undefined;
    if (!this.past || !known) return null;
    const { count } = this.past;
    const settled = { resid_pre: rowsFrom(this.read("resid_pre"), count), ...(name === "resid_post" && { z: rowsFrom(this.read("z"), count) }) };
    return joined(known, count, this.alone(settled, count).read(name));
  }

  /**
   * This layer of a few positions.
   *
   * @param {Partial<Record<string, Tensor>>} settled
   * @param {number} first  where the first of them stands
   */
  alone(settled, first) {
    return new LayerPass(this.layer, { entering: this.entering, edits: new Map(), settled, first });
  }

  /** What a pass that begins with the same tokens may take from this one. @param {number} count @returns {Past} */
  pastOf(count) {
    return { count, computed: Object.fromEntries(CONTINUED.map((name) => [name, this.computed[name]])) };
  }

  /** True where this quantity may differ from what those before it give. @param {Name} name */
  given(name) {
    return this.edits.has(name);
  }

  /**
   * resid_post at one position, (1, d_model). Behind z a position depends on no other, so that nothing
   * is computed there for the others.
   *
   * @param {number} position
   * @returns {Tensor}
   */
  lastRow(position) {
    if (this.computed.resid_post || NAMES.slice(NAMES.indexOf("z") + 1).some((name) => this.given(name))) {
      return rowOf(this.read("resid_post"), position);
    }
    return this.alone({ resid_pre: rowOf(this.read("resid_pre"), position), z: rowOf(this.read("z"), position) }, position).read("resid_post");
  }

  /** What W_Q, W_K and W_V read; all three read the same. */
  get attentionInput() {
    return (this.input ??= this.layer.attentionInput(this.read("resid_pre")));
  }

  /** What W_in and W_gate read. */
  get mlpInput() {
    return (this.inputOfMlp ??= this.layer.mlpInput(this.read(this.layer.parallel ? "resid_pre" : "resid_mid")));
  }

  /** @type {Tensor | undefined} */
  input;
  /** @type {Tensor | undefined} */
  inputOfMlp;
}

for (const name of NAMES) {
  Object.defineProperty(LayerPass.prototype, name, {
    get() {
      return this.read(name);
    },
  });
}
