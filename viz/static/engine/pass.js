/**
 * One forward pass of one text, kept, as trace/run.py: every quantity of it can be read later.
 *
 * A layer is one table: every quantity in the order of the data, each declared once. This is the table of
 * layers/layer.py, name for name. A declaration is a function of the quantities before it. `LayerPass` evaluates the
 * table for one layer of one pass: a forward pass asks for resid_post; a read asks for one quantity later; an edit
 * replaces a value on the way; a rerun begins with what is known, so that what lies before the first edit is shared.
 *
 * @import { Plan } from "./edits.js"
 * @import { Tensor } from "./tensor.js"
 */

import { predicts } from "./answers.js";
import { attentionProbs, attentionScores, weightedValues } from "./model.js";
import { joined, rowOf, rowsFrom, tensor } from "./tensor.js";

/**
 * @typedef {(value: Tensor) => Tensor} Change
 *
 * @typedef {"resid_pre" | "query_unrotated" | "key_unrotated" | "query" | "key" | "value" | "scores" | "probs"
 *   | "z" | "head_out" | "attn_out" | "resid_mid" | "mlp_gate" | "mlp_pre" | "mlp_post" | "mlp_out"
 *   | "resid_post"} Name
 * @typedef {LayerPass & Record<Name, Tensor>} At  one layer of one pass
 */



/**
 * The table; names and axes are those of Python, which the model in the file brings along (`Config.axes`).
 *
 * @type {Record<Name, (at: At) => Tensor>}
 */
export const LAYER_QUANTITIES = {
  resid_pre: (at) => at.entering,
  query_unrotated: (at) => at.attention.project("query", at.attentionInput),
  key_unrotated: (at) => at.attention.project("key", at.attentionInput),
  query: (at) => at.attention.rotary ? at.attention.turned(at.query_unrotated, at.first) : at.attention.project("query", at.attentionInput),
  key: (at) => at.attention.rotary ? at.attention.turned(at.key_unrotated, at.first) : at.attention.project("key", at.attentionInput),
  value: (at) => at.attention.project("value", at.attentionInput),
  scores: (at) => attentionScores(at.query, at.key, at.attention.scale),
  probs: (at) => attentionProbs(at.scores, at.attention.looking),
  z: (at) => weightedValues(at.probs, at.value),
  head_out: (at) => at.attention.headOut(at.z),
  attn_out: (at) => at.given("head_out") ? at.attention.sumOfHeads(at.head_out) : at.attention.attnOut(at.z),
  resid_mid: (at) => at.layer.afterAttention(at.resid_pre, at.attn_out),
  mlp_gate: (at) => at.layer.mlp.gateOf(at.mlpInput),
  mlp_pre: (at) => at.layer.mlp.up.forward(at.mlpInput.values),
  mlp_post: (at) => at.layer.mlp.post(at.mlp_pre, at.layer.mlp.gate ? at.mlp_gate : null),
  mlp_out: (at) => at.layer.mlp.down.forward(at.mlp_post.values),
  resid_post: (at) => at.layer.afterMlp(at.resid_mid, at.mlp_out),
};

const NAMES = /** @type {Name[]} */ (Object.keys(LAYER_QUANTITIES));
/** What a longer text takes from a shorter one: what is multiplied by weights on the way to resid_post. */
const CONTINUED = /** @type {Name[]} */ (["query", "key", "value", "resid_post"]);

/** @typedef {{count: number, computed: Partial<Record<string, Tensor>>}} Past  of a layer where no query sees a key behind it: what is known of as many positions in front */

/** One layer of one pass: what is known of it, resid_pre at least, and the table for the rest. */
export class LayerPass {
  /**
   * @param {import("./model.js").Layer} layer
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
    const value = this.continued(name) ?? LAYER_QUANTITIES[name](/** @type {At} */ (/** @type {unknown} */ (this)));
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

export class Pass {
  /**
   * @param {import("./model.js").Model} model
   * @param {import("./tokens.js").Tokens} tokens
   * @param {Plan} plan  its edits
   * @param {Pass | null} [from]  a pass that is the same before `start`
   * @param {import("./edits.js").Place} [start]  the first place at which they differ
   * @param {Past[]} [pasts]  of each layer, from a pass without edits that begins with the same tokens
   */
  constructor(model, tokens, plan, from = null, start = from ? plan.first : { layer: 0, name: "embed" }, pasts = []) {
    this.model = model;
    this.tokens = tokens;
    this.plan = plan;
    const before = from && start.name !== "embed" ? partsOf(from) : null;
    this.embed = before?.embed ?? plan.changed("embed", model.body.embed(tokens.ids, tokens.segments));
    /** @type {LayerPass[]} */
    this.layers = [];
    for (const [n, layer] of model.layers.entries()) {
      // Of the last layer nothing is computed until it is read.
      const entering = n ? this.layers[n - 1].read("resid_post") : this.embed;
      const settled = from && n === start.layer ? from.settledBefore(n, start.name) : {};
      const edits = plan.ofLayer(n);
      const about = { entering, edits, settled, past: pasts[n] };
      const at = (n < start.layer && before?.layers[n]) || new LayerPass(layer, about);
      this.layers.push(at);
    }
    /** @type {Tensor | null} */
    this.allLogits = null;
    /** By position. @type {Map<number, Float32Array>} */
    this.logitsThere = new Map();
  }

  /** The quantities of a layer that come before one of them. @param {number} layer @param {string} name */
  settledBefore(layer, name) {
    const { computed } = this.layers[layer];
    const names = Object.keys(LAYER_QUANTITIES);
    return Object.fromEntries(Object.entries(computed).filter(([own]) => names.indexOf(own) < names.indexOf(name)));
  }

  /** The number of tokens. */
  get length() {
    return this.tokens.ids.length;
  }

  /**
   * A quantity of the glossary.
   *
   * @param {string} quantity
   * @param {number | null} layer  null for those that no layer has
   * @returns {Tensor}
   */
  read(quantity, layer) {
    if (quantity in LAYER_QUANTITIES) {
      const { name, absent } = this.model.config;
      if (absent.includes(quantity)) throw new RangeError(`${name} has no ${quantity}`);
      const at = layer === null ? undefined : this.layers[layer];
      if (!at) throw new RangeError(`${quantity}: there is no layer ${layer}; the model has ${this.layers.length}`);
      return at.read(/** @type {Name} */ (quantity));
    }
    if (quantity === "embed") return this.embed;
    if (quantity === "logits") return predicts(this.model.config) === "classes" ? ofText(this.logits()) : this.logits();
    if (quantity === "mask") return this.mask();
    throw new RangeError(`${quantity} is no quantity; there are embed, ${Object.keys(LAYER_QUANTITIES).join(", ")}, logits, mask`);
  }

  /** What the task head gives, (position, vocab), or (1, label) of a text; without one, the last hidden state. */
  logits() {
    return (this.allLogits ??= this.plan.changed("logits", this.model.head ? this.model.head.forward(this.hidden) : this.hidden));
  }

  /** What the task head reads: (position, d_model). */
  get hidden() {
    return this.model.body.final(this.layers[this.layers.length - 1].read("resid_post"));
  }

  /**
   * The logits at one position alone; those of the text where they are of texts.
   *
   * @param {number} position
   * @returns {Float32Array}
   */
  logitsAt(position) {
    const { head } = this.model;
    if (predicts(this.model.config) === "classes") return this.logits().values;
    if (!head || this.plan.edits("logits", null) || this.allLogits) {
      const { shape, values } = this.logits();
      return values.slice(position * shape[1], (position + 1) * shape[1]);
    }
    const last = () => this.layers[this.layers.length - 1].lastRow(position);
    const made = this.logitsThere.get(position) ?? head.forward(this.model.body.final(last())).values;
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

/** Without the axis of positions, which classes of a text do not have. @param {Tensor} logits */
function ofText({ shape, values }) {
  return tensor([shape[1]], values);
}

/** What another pass may share. @param {Pass} pass @returns {{embed: Tensor, layers: LayerPass[]}} */
function partsOf({ embed, layers }) {
  return { embed, layers };
}
