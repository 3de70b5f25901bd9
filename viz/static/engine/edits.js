/**
 * Edits, checked against a model and a text, and then made in the order of the data, as trace/edit.py.
 *
 * @import { Edit } from "./engine.js"
 * @import { Tensor } from "./tensor.js"
 */

import { predicts } from "./answers.js";
import { lookingOf, seenKeys } from "./model.js";
import { LAYER_QUANTITIES } from "./pass.js";

const WITHOUT_LAYER = ["embed", "logits"];
const MATRICES = ["scores", "probs"];
const CHANGES = ["zero", "mean", "text", "set", "hide"];

/**
 * Throws an Error for an edit that the model or the text has no place for.
 *
 * @param {Edit} edit
 * @param {import("./model.js").Config} config
 * @param {number} length  tokens
 */
export function checkEdit(edit, config, length) {
  const { quantity, change } = edit;
  if (!Object.hasOwn(config.axes, quantity)) {
    throw new Error(`${quantity} cannot be edited; there are ${Object.keys(config.axes).join(", ")}`);
  }
  if (!CHANGES.includes(change)) throw new Error(`${change} is no change; there are ${CHANGES.join(", ")}`);
  if (config.absent.includes(quantity)) throw new Error(`${config.name} has no ${quantity}`);
  checkNumbers(edit, config, length);
  checkChange(edit);
}

/** @param {Edit} edit @param {import("./model.js").Config} config @param {number} length */
function checkNumbers(edit, config, length) {
  const axes = config.axes[edit.quantity];
  const matrix = MATRICES.includes(edit.quantity);
  const classes = edit.quantity === "logits" && predicts(config) === "classes";
  const lengths = { d_head: config.d_head, d_model: config.d_model, d_mlp: config.d_mlp, vocab: classes ? config.labels.length : config.vocab_size };
  const last = /** @type {keyof typeof lengths} */ (axes[axes.length - 1]);
  checkNumber(edit, "layer", WITHOUT_LAYER.includes(edit.quantity) ? 0 : config.n_layers);
  const heads = { head: config.n_heads, kv_head: config.n_kv_heads };
  checkNumber(edit, "head", heads[/** @type {keyof typeof heads} */ (axes[0])] ?? 0);
  checkNumber(edit, "position", classes ? 0 : length);
  checkNumber(edit, "key", matrix ? length : 0);
  checkNumber(edit, "neuron", matrix ? 0 : lengths[last]);
}

/**
 * @param {Edit} edit
 * @param {"layer" | "head" | "position" | "key" | "neuron"} field
 * @param {number} count  how many there are; 0 where the quantity has none
 */
function checkNumber(edit, field, count) {
  const number = edit[field] ?? null;
  if (number === null) return;
  if (!count) throw new Error(`${edit.quantity} has no ${field}: leave it out`);
  if (!Number.isInteger(number) || number < 0 || number >= count) {
    throw new Error(`${edit.quantity}: there is no ${field} ${number}; expected 0 to ${count - 1}`);
  }
}

/** @param {Edit} edit */
function checkChange({ quantity, change, key, value }) {
  if (change === "mean" && MATRICES.includes(quantity)) {
    throw new Error(`the mean of ${quantity} over positions means nothing; choose zero, set or text`);
  }
  if (change === "hide" && quantity !== "scores") throw new Error(`hide is a change of scores, not of ${quantity}`);
  if (change === "hide" && (key ?? null) === null) throw new Error("hide: which key?");
  if (change !== "set") return;
  if (typeof value !== "number" || !Number.isFinite(value)) throw new Error(`set of ${quantity}: ${value} is no number`);
  if (quantity !== "probs") return;
  if ((key ?? null) === null) throw new Error("set of probs: which key?");
  if (value < 0 || value > 1) throw new Error(`set of probs: ${value} is no weight; expected 0 to 1`);
}

/**
 * @typedef {object} Where
 * @property {number | null} layer
 * @property {import("./model.js").Looking} looking  of the layer
 * @property {Sources | undefined} sources
 *
 * @typedef {[number, number]} Range  from, to
 * @typedef {[Range, Range, Range]} Ranges  of head, of position or query, and of the last axis
 */



/**
 * The quantity with one edit made; the tensor given is left as it is.
 *
 * @param {Tensor} value
 * @param {string[]} axes
 * @param {Edit} edit
 * @param {Where} where
 * @returns {Tensor}
 */
export function edited(value, axes, edit, where) {
  const result = { shape: value.shape, values: value.values.slice() };
  const sizes = sizesOf(value);
  const ranges = rangesOf(sizes, edit, axes);
  if (edit.change === "zero") fill(result, ranges, 0);
  else if (edit.change === "mean") takeMeans(result, ranges, source(edit, where, "clean"));
  else if (edit.change === "text") takeFrom(result, ranges, source(edit, where, "other"));
  else if (edit.change === "hide") hide(result, ranges, where.looking);
  else if (edit.quantity === "probs") setWeights(result, ranges, edit, where.looking);
  else fill(result, ranges, edit.value ?? 0);
  return result;
}

/** The shape as (head, position, last). @param {Tensor} value @returns {[number, number, number]} */
function sizesOf({ shape }) {
  return shape.length === 3 ? [shape[0], shape[1], shape[2]] : [1, shape[0], shape[1]];
}

/** @param {[number, number, number]} sizes @param {Edit} edit @param {string[]} axes @returns {Ranges} */
function rangesOf(sizes, edit, axes) {
  const last = axes.includes("key") ? edit.key : edit.neuron;
  const chosen = [axes.length === 3 ? edit.head : null, edit.position, last];
  return /** @type {Ranges} */ (
    sizes.map((size, i) => {
      const one = chosen[i] ?? null;
      return one === null ? [0, size] : [one, one + 1];
    })
  );
}

/** @param {Edit} edit @param {Where} where @param {"clean" | "other"} which */
function source({ quantity }, { layer, sources }, which) {
  if (!sources) throw new Error(`this edit of ${quantity} has no pass to read from`);
  return sources[which]().read(quantity, layer);
}

/**
 * @param {Tensor} tensor
 * @param {Ranges} ranges
 * @param {(at: number, head: number, position: number, last: number) => void} visit
 */
function forEach(tensor, [heads, positions, lasts], visit) {
  const [, nPositions, nLast] = sizesOf(tensor);
  for (let head = heads[0]; head < heads[1]; head += 1) {
    for (let position = positions[0]; position < positions[1]; position += 1) {
      const row = (head * nPositions + position) * nLast;
      for (let last = lasts[0]; last < lasts[1]; last += 1) visit(row + last, head, position, last);
    }
  }
}

/** @param {Tensor} result @param {Ranges} ranges @param {number} value */
function fill(result, ranges, value) {
  forEach(result, ranges, (at) => (result.values[at] = value));
}

/** The mean over all positions of the source. @param {Tensor} result @param {Ranges} ranges @param {Tensor} clean */
function takeMeans(result, ranges, clean) {
  const [heads, positions, width] = sizesOf(clean);
  const means = new Float64Array(heads * width);
  forEach(clean, [[0, heads], [0, positions], [0, width]], (at, head, position, last) => {
    means[head * width + last] += clean.values[at] / positions;
  });
  forEach(result, ranges, (at, head, position, last) => (result.values[at] = means[head * width + last]));
}

/**
 * The same places of the other text, which has as many tokens.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {Tensor} other
 */
function takeFrom(result, ranges, other) {
  const [, own] = sizesOf(result);
  const [, theirs] = sizesOf(other);
  if (own !== theirs) throw new Error(`the other text has ${theirs} tokens and this one ${own}: they must have equally many`);
  forEach(result, ranges, (at) => (result.values[at] = other.values[at]));
}

/**
 * Scores of −inf. Every query must keep a key that it may see.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {import("./model.js").Looking} looking
 */
function hide(result, ranges, looking) {
  const [, , nKeys] = sizesOf(result);
  forEach(result, ranges, (at, head, query, key) => {
    result.values[at] = -Infinity;
    const [from, to] = seenKeys(looking, query, nKeys);
    const seen = result.values.subarray(at - key + from, at - key + to);
    if (seen.every((score) => score === -Infinity)) throw new Error(`no key is left for the token at position ${query} to look at`);
  });
}

/**
 * One weight of a row, and the others scaled so that the row sums to 1 again. Of all queries those
 * change that see the key and another one.
 *
 * @param {Tensor} result
 * @param {Ranges} ranges
 * @param {Edit} edit
 * @param {import("./model.js").Looking} looking
 */
function setWeights(result, ranges, { value = 0, position = null }, looking) {
  const [, , nKeys] = sizesOf(result);
  forEach(result, ranges, (at, head, query, key) => {
    const row = result.values.subarray(at - key, at - key + nKeys);
    const [from, to] = seenKeys(looking, query, nKeys);
    const hidden = key < from || key >= to;
    if (hidden && position !== null) throw new Error(`the token at position ${query} cannot look at position ${key}`);
    const others = row.reduce((sum, weight, i) => (i === key ? sum : sum + weight), 0);
    if (!hidden && !others && value !== 1 && position !== null) {
      throw new Error(`the token at position ${query} gives no other token any weight, so none can be scaled`);
    }
    if (hidden || !others) return;
    for (let i = 0; i < nKeys; i += 1) row[i] *= (1 - value) / others;
    row[key] = value;
  });
}

/**
 * @typedef {object} Place  of the first change in a pass
 * @property {number} layer
 * @property {string} name
 *
 * @typedef {object} Sources  where edits read values from
 * @property {() => import("./pass.js").Pass} clean  the same text without edits
 * @property {() => import("./pass.js").Pass} other  the other text
 */



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

  /** The edits of a quantity; null where there is none. @param {string} name @param {number | null} layer */
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
    return found.reduce((now, edit) => edited(now, this.config.axes[name], edit, { layer, looking: lookingOf(this.config, layer ?? 0), sources: this.sources }), value);
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
