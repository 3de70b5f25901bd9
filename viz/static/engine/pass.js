/**
 * One forward pass of one text, kept, as trace/run.py: every quantity of it can be read later.
 *
 * A layer is one table: every quantity in the order of the data, each declared once. This is the table of
 * layers/layer.py, name for name: `LocalEngine` checks it against Python's, which the model in the file brings along. A
 * declaration is a function of the quantities before it. `LayerPass` evaluates the table for one layer of one pass: a
 * forward pass asks for resid_post; a read asks for one quantity later; an edit replaces a value on the way; a rerun
 * begins with what is known, so that what lies before the first edit is shared.
 *
 * @import { Plan } from "./edits.js"
 * @import { Layer, Model } from "./model.js"
 * @import { Tensor } from "./tensor.js"
 * @import { Tokens } from "./tokens.js"
 */

import { predicts } from "./answers.js";
import { attentionProbs, attentionScores, weightedValues } from "./model.js";
import { joined, rowOf, rowsOf, tensor } from "./tensor.js";

/**
 * @typedef {"resid_pre" | "query_unrotated" | "key_unrotated" | "query" | "key" | "value" | "scores" | "probs"
 *   | "z" | "head_out" | "attn_out" | "resid_mid" | "mlp_gate" | "mlp_pre" | "mlp_post" | "mlp_out"
 *   | "resid_post"} Name
 * @typedef {LayerPass & Record<Name, Tensor>} At  one layer of one pass
 */

/** @param {At} at @param {"query" | "key"} name */
function placed(at, name) {
  const { rotary } = at.attention;
  return rotary ? at.attention.turned(at[`${name}_unrotated`], at.first) : at.attention.project(name, at.attentionInput);
}

/** @type {Record<Name, (at: At) => Tensor>} */
export const LAYER_QUANTITIES = {
  resid_pre: (at) => at.entering,
  query_unrotated: (at) => at.attention.project("query", at.attentionInput),
  key_unrotated: (at) => at.attention.project("key", at.attentionInput),
  query: (at) => placed(at, "query"),
  key: (at) => placed(at, "key"),
  value: (at) => at.attention.project("value", at.attentionInput),
  scores: (at) => attentionScores(at.query, at.key, at.attention.scale),
  probs: (at) => attentionProbs(at.scores, at.attention.looking, at.first),
  z: (at) => weightedValues(at.probs, at.value),
  head_out: (at) => at.attention.headOut(at.z),
  attn_out: (at) => (at.edited.has("head_out") ? at.attention.sumOfHeads(at.head_out) : at.attention.attnOut(at.z)),
  resid_mid: (at) => at.layer.added("attention", at.resid_pre, at.attn_out),
  mlp_gate: (at) => at.layer.mlp.gateOf(at.mlpInput),
  mlp_pre: (at) => at.layer.mlp.up.forward(at.mlpInput.values),
  mlp_post: (at) => at.layer.mlp.post(at.mlp_pre, at.layer.mlp.gate ? at.mlp_gate : null),
  mlp_out: (at) => at.layer.mlp.down.forward(at.mlp_post.values),
  resid_post: (at) => at.layer.added("mlp", at.resid_mid, at.mlp_out),
};

const NAMES = /** @type {Name[]} */ (Object.keys(LAYER_QUANTITIES));
/** What a longer text takes from a shorter one, and what its further positions are computed from. @type {Partial<Record<Name, Name[]>>} */
const CONTINUED = { query: ["resid_pre"], key: ["resid_pre"], value: ["resid_pre"], z: ["query"], resid_post: ["resid_pre", "z"] };

/** What is computed again where it is read, and not kept: the largest of a layer. */
const REMADE = /** @type {Name[]} */ (["head_out", "attn_out", "mlp_gate", "mlp_pre", "mlp_post", "mlp_out"]);

/**
 * @typedef {Partial<Record<Name, Tensor>>} Known
 * @typedef {{known: Known, count: number}} Past  of so many positions in front
 */

/** One layer of one pass: what is known of it, resid_pre at least, and the table for the rest. */
export class LayerPass {
  /**
   * @param {Layer} layer
   * @param {Tensor} entering  resid_pre, before an edit of it
   * @param {object} [more]
   * @param {Plan} [more.plan]  the edits of the pass
   * @param {number} [more.index]  the number of the layer, for them
   * @param {Known} [more.settled]  values from before, edits of them made
   * @param {Past} [more.past]  what is known of the positions in front, from a pass without edits, as this one is
   * @param {number} [more.first]  where the first of its positions stands
   */
  constructor(layer, entering, { plan, index = 0, settled = {}, past = { known: {}, count: 0 }, first = 0 } = {}) {
    this.layer = layer;
    this.attention = layer.attention;
    this.entering = entering;
    this.plan = plan;
    this.index = index;
    this.edited = new Set(plan?.names(index));
    this.past = past;
    this.first = first;
    /** @type {Known} */
    this.computed = { ...settled };
  }

  /** The value here: known, or computed; then changed, where there is an edit of it. @param {Name} name @returns {Tensor} */
  read(name) {
    const known = this.computed[name];
    if (known) return known;
    const value = this.continued(name) ?? LAYER_QUANTITIES[name](/** @type {At} */ (/** @type {unknown} */ (this)));
    return (this.computed[name] = this.edited.has(name) && this.plan ? this.plan.changed(name, value, this.index) : value);
  }

  /** What is known of the positions in front, and the others computed; null where nothing is known. @param {Name} name */
  continued(name) {
    const { known: { [name]: known }, count } = this.past;
    const from = CONTINUED[name];
    if (!known || !from) return null;
    const further = this.some(count, from);
    if (name === "z") Object.assign(further.computed, { key: this.read("key"), value: this.read("value") });
    return joined(known, count, further.read(name));
  }

  /** This layer of the positions [first, end), begun with these quantities. @param {number} first @param {Name[]} names @param {number} [end] */
  some(first, names, end) {
    const settled = Object.fromEntries(names.map((name) => [name, rowsOf(this.read(name), first, end)]));
    return new LayerPass(this.layer, this.entering, { settled, first });
  }

  /** The quantities that come before one of them. @param {string} name @returns {Known} */
  before(name) {
    const end = NAMES.findIndex((one) => one === name);
    return Object.fromEntries(NAMES.slice(0, end < 0 ? undefined : end).flatMap((one) => (this.computed[one] ? [[one, this.computed[one]]] : [])));
  }

  /**
   * resid_post at one position, (1, d_model). Behind z a position depends on no other, so that nothing
   * is computed there for the others.
   *
   * @param {number} position
   */
  lastRow(position) {
    const whole = this.computed.resid_post || NAMES.slice(NAMES.indexOf("z") + 1).some((name) => this.edited.has(name));
    return whole ? rowOf(this.read("resid_post"), position) : this.some(position, ["resid_pre", "z"], position + 1).read("resid_post");
  }

  /** Lets go of what can be computed again. */
  forget() {
    for (const name of REMADE) delete this.computed[name];
    this.input = this.inputOfMlp = undefined;
  }

  /** The numbers that are kept. */
  get size() {
    return Object.values(this.computed).reduce((sum, { values }) => sum + values.length, 0);
  }

  /** What W_Q, W_K and W_V read; all three read the same. */
  get attentionInput() {
    return (this.input ??= this.layer.input("attention", this.read("resid_pre")));
  }

  /** What W_in and W_gate read. */
  get mlpInput() {
    return (this.inputOfMlp ??= this.layer.input("mlp", this.read(this.layer.parallel ? "resid_pre" : "resid_mid")));
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

export class Pass {
  /**
   * @param {Model} model
   * @param {Tokens} tokens
   * @param {Plan} plan  its edits
   * @param {Pass | null} [from]  a pass that is the same before `start`
   * @param {{layer: number, name: string}} [start]  the first place at which they differ
   * @param {Past[]} [pasts]  of each layer, from a pass without edits that begins with the same tokens
   */
  constructor(model, tokens, plan, from = null, start = from ? plan.first : { layer: 0, name: "embed" }, pasts = []) {
    this.model = model;
    this.tokens = tokens;
    this.plan = plan;
    /** @type {Pass | null} */
    const shared = start.name === "embed" ? null : from;
    /** @type {Tensor} */
    this.embed = shared?.embed ?? plan.changed("embed", model.body.embed(tokens.ids, tokens.segments));
    /** @type {LayerPass[]} */
    this.layers = [];
    for (const [index, layer] of model.layers.entries()) {
      // Of the last layer nothing is computed until it is read.
      const entering = index ? this.layers[index - 1].read("resid_post") : this.embed;
      this.layers[index - 1]?.forget();
      const settled = shared && index === start.layer ? shared.layers[index].before(start.name) : {};
      const own = () => new LayerPass(layer, entering, { plan, index, settled, past: pasts[index] });
      this.layers.push(shared && index < start.layer ? shared.layers[index] : own());
    }
    /** @type {Tensor | null} */
    this.allLogits = null;
    /** By position. @type {Map<number, Float32Array>} */
    this.logitsThere = new Map();
  }

  /** The numbers of its layers that are kept. */
  get size() {
    return this.layers.reduce((sum, layer) => sum + layer.size, 0);
  }

  /** The number of tokens. */
  get length() {
    return this.tokens.ids.length;
  }

  /** A quantity of the glossary. @param {string} quantity @param {number | null} layer  null for those that no layer has @returns {Tensor} */
  read(quantity, layer) {
    const { config } = this.model;
    if (quantity in LAYER_QUANTITIES) {
      if (!Object.hasOwn(config.quantities, quantity)) throw new RangeError(`${config.name} has no ${quantity}`);
      const at = layer === null ? undefined : this.layers[layer];
      if (!at) throw new RangeError(`${quantity}: there is no layer ${layer}; the model has ${this.layers.length}`);
      return at.read(/** @type {Name} */ (quantity));
    }
    if (quantity === "embed") return this.embed;
    // Classes of a text have no axis of positions.
    if (quantity === "logits") return predicts(config) === "classes" ? tensor([this.logits().shape[1]], this.logits().values) : this.logits();
    if (quantity === "mask") return this.mask();
    throw new RangeError(`${quantity} is not a quantity; there are embed, ${NAMES.join(", ")}, logits, mask`);
  }

  /** What the task head gives, (position, vocab), or (1, label) of a text; without one, the last hidden state. */
  logits() {
    const { body, head } = this.model;
    const hidden = () => body.final(this.layers[this.layers.length - 1].read("resid_post"));
    return (this.allLogits ??= this.plan.changed("logits", head ? head.forward(hidden()) : hidden()));
  }

  /** The logits at one position alone; those of the text where they are of texts. @param {number} position @returns {Float32Array} */
  logitsAt(position) {
    const { body, config, head } = this.model;
    if (predicts(config) === "classes") return this.logits().values;
    if (!head || this.allLogits || this.plan.of("logits", null).length) {
      const { shape, values } = this.logits();
      return values.slice(position * shape[1], (position + 1) * shape[1]);
    }
    const made = this.logitsThere.get(position) ?? head.forward(body.final(this.layers[this.layers.length - 1].lastRow(position))).values;
    this.logitsThere.set(position, made);
    return made;
  }

  /** 1 where attention is allowed: (1, query, key). */
  mask() {
    const { length } = this;
    const out = tensor([1, length, length]);
    for (let i = 0; i < out.values.length; i += 1) {
      out.values[i] = Number(!this.model.config.causal || i % length <= Math.floor(i / length));
    }
    return out;
  }
}
