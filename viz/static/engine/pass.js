/**
 * One forward pass of one text, kept, as trace/run.py: every quantity of it can be read later.
 *
 * A pass with edits begins from the pass without them: what lies before the first edit is shared.
 */

import { LAYER_QUANTITIES, LayerPass } from "./layer.js";
import { predicts } from "./predictions.js";
import { tensor } from "./tensor.js";

/**
 * @typedef {import("./tensor.js").Tensor} Tensor
 * @typedef {import("./layer.js").Name} Name
 * @typedef {import("./plan.js").Plan} Plan
 */

export class Pass {
  /**
   * @param {import("./model.js").Model} model
   * @param {import("./tokens.js").Tokens} tokens
   * @param {Plan} plan  its edits
   * @param {Pass | null} [from]  a pass that is the same before `start`
   * @param {import("./plan.js").Place} [start]  the first place at which they differ
   * @param {import("./layer.js").Past[]} [pasts]  of each layer, from a pass without edits that begins with the same tokens
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

  /**
   * The quantities of a layer that come before one of them.
   *
   * @param {number} layer
   * @param {string} name
   */
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

/**
 * What another pass may share.
 *
 * @param {Pass} pass
 * @returns {{embed: Tensor, layers: LayerPass[]}}
 */
function partsOf({ embed, layers }) {
  return { embed, layers };
}
