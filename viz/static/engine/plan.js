/**
 * Edits, checked against a model and a text, and then made in the order of the data, as trace/plan.py.
 *
 * @typedef {import("./engine.js").Edit} Edit
 * @typedef {import("./tensor.js").Tensor} Tensor
 *
 * @typedef {object} Place  of the first change in a pass
 * @property {number} layer
 * @property {string} name
 *
 * @typedef {object} Sources  where edits read values from
 * @property {() => import("./pass.js").Pass} clean  the same text without edits
 * @property {() => import("./pass.js").Pass} other  the other text
 */

import { lookingOf } from "./attention.js";
import { axesOf, checkEdit } from "./edit_checks.js";
import { edited } from "./edits.js";
import { LAYER_QUANTITIES } from "./layer.js";

const NAMES = Object.keys(LAYER_QUANTITIES);

export class Plan {
  /**
   * Throws an Error for an edit that the model or the text has no place for.
   *
   * @param {Edit[]} edits
   * @param {import("./model.js").Config} config
   * @param {number} length  tokens
   * @param {Sources} [sources]
   */
  constructor(edits, config, length, sources) {
    for (const edit of edits) checkEdit(edit, config, length);
    // Edits of all heads come first and those of single heads last: they are more specific.
    this.list = [...edits].sort((one, other) => Number(hasHead(one)) - Number(hasHead(other)));
    this.nLayers = config.n_layers;
    this.config = config;
    this.sources = sources;
  }

  /**
   * The edits of a quantity; null where there is none.
   *
   * @param {string} name
   * @param {number | null} layer
   */
  edits(name, layer) {
    const found = this.list.filter((edit) => edit.quantity === name && (edit.layer ?? layer) === layer);
    return found.length ? found : null;
  }

  /**
   * A quantity after all edits of it; the tensor given is left as it is.
   *
   * @param {string} name
   * @param {Tensor} value
   * @param {number | null} [layer]
   * @returns {Tensor}
   */
  changed(name, value, layer = null) {
    const found = this.edits(name, layer) ?? [];
    return found.reduce((now, edit) => edited(now, axesOf(name), edit, { layer, looking: lookingOf(this.config, layer ?? 0), sources: this.sources }), value);
  }

  /**
   * What to do to the quantities of a layer, by name.
   *
   * @param {number} layer
   * @returns {Map<string, (value: Tensor) => Tensor>}
   */
  ofLayer(layer) {
    const names = NAMES.filter((name) => this.edits(name, layer));
    return new Map(names.map((name) => [name, (value) => this.changed(name, value, layer)]));
  }

  /** The first place at which something changes. @returns {Place} */
  get first() {
    if (this.edits("embed", null)) return { layer: 0, name: "embed" };
    for (let layer = 0; layer < this.nLayers; layer += 1) {
      const name = NAMES.find((one) => this.edits(one, layer));
      if (name) return { layer, name };
    }
    return { layer: this.nLayers, name: "logits" };
  }
}

/** @param {Edit} edit */
function hasHead(edit) {
  return (edit.head ?? null) !== null;
}
