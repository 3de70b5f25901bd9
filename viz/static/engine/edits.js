/**
 * Edits, checked against a model and a text, and then made in the order of the data.
 *
 * What an edit may name, and why not, stands in the table that viz/engine_edits.py writes into the page: `editable`.
 *
 * @import { Change, Edit } from "./engine.js"
 * @import { Config, Looking } from "./model.js"
 * @import { Pass } from "./pass.js"
 * @import { Tensor } from "./tensor.js"
 */

import { seenOf, sees } from "../core/data/softmax.js";
import { lookingOf } from "./model.js";
import { LAYER_QUANTITIES } from "./pass.js";

const NAMES = Object.keys(LAYER_QUANTITIES);

/** Throws an Error for an edit that the model or the text has no place for. @param {Edit} edit @param {Config} config @param {number} length  tokens */
export function checkEdit(edit, { quantities }, length) {
  const { quantity, change, value } = edit;
  const key = edit.key ?? null;
  if (!Object.hasOwn(quantities, quantity)) throw new Error(`${quantity} cannot be edited; there are ${Object.keys(quantities).join(", ")}`);
  if (!Object.hasOwn(CHANGES, change)) throw new Error(`${change} is not a change; there are ${Object.keys(CHANGES).join(", ")}`);
  const { places, refused } = quantities[quantity];
  for (const [name, count] of Object.entries(places)) checkNumber(edit, /** @type {Place} */ (name), count ?? length);
  if (Object.hasOwn(refused, change)) throw new Error(refused[change]);
  if (change === "hide" && key === null) throw new Error("hide: which key?");
  if (change !== "set") return;
  if (typeof value !== "number" || !Number.isFinite(value)) throw new Error(`set of ${quantity}: ${value} is not a number`);
  if (quantity !== "probs") return;
  if (key === null) throw new Error("set of probs: which key?");
  if (value < 0 || value > 1) throw new Error(`set of probs: ${value} is not a weight; expected 0 to 1`);
}

/** @typedef {"layer" | "head" | "position" | "key" | "neuron"} Place */

/** @param {Edit} edit @param {Place} field @param {number} count  how many there are; 0 where the quantity has none */
function checkNumber(edit, field, count) {
  const number = edit[field] ?? null;
  if (number === null) return;
  if (!count) throw new Error(`${edit.quantity} has no ${field}: leave it out`);
  if (!Number.isInteger(number) || number < 0 || number >= count) {
    throw new Error(`${edit.quantity}: there is no ${field} ${number}; expected 0 to ${count - 1}`);
  }
}

/**
 * @typedef {object} Sources  where edits read values from
 * @property {() => Pass} clean  the same text without edits
 * @property {() => Pass} other  the other text
 *
 * @typedef {object} At  the quantity that is edited, and where
 * @property {Tensor} result  changed in place
 * @property {Edit} edit
 * @property {Looking} looking  of the layer
 * @property {(which: keyof Sources) => Tensor} source  the same quantity of another pass
 *
 * @typedef {(at: number, head: number, position: number, last: number) => void} Visit  a cell: its place among the values, and on the axes
 */

/** What each change does to a cell. @type {Record<Change, (at: At) => Visit>} */
const CHANGES = {
  zero: ({ result: { values } }) => (at) => (values[at] = 0),
  mean({ result: { values }, source }) {
    const clean = source("clean");
    const [heads, positions, width] = sizesOf(clean);
    const means = new Float64Array(heads * width);
    forEach(clean, {}, (at, head, _, last) => (means[head * width + last] += clean.values[at] / positions));
    return (at, head, _, last) => (values[at] = means[head * width + last]);
  },
  text({ result, source }) {
    const other = source("other");
    const [[, own], [, theirs]] = [sizesOf(result), sizesOf(other)];
    if (own !== theirs) throw new Error(`the other text has ${theirs} tokens and this one ${own}: they must have equally many`);
    return (at) => (result.values[at] = other.values[at]);
  },
  set: (where) => (where.edit.quantity === "probs" ? setWeight(where) : (at) => (where.result.values[at] = where.edit.value ?? 0)),
  // Every query must keep a key that it may see.
  hide: ({ result, looking }) => (at, _, query, key) => {
    result.values[at] = -Infinity;
    const { first, end } = seenOf({ nKeys: sizesOf(result)[2], window: looking.window }, looking.causal, query);
    const seen = result.values.subarray(at - key + first, at - key + end);
    if (seen.every((score) => score === -Infinity)) throw new Error(`no key is left for the token at position ${query} to look at`);
  },
};

/**
 * One weight of a row, and the others scaled so that the row sums to 1 again. Of all queries those change that see the
 * key and another one.
 *
 * @param {At} at
 * @returns {Visit}
 */
function setWeight({ result, edit: { value = 0, position }, looking }) {
  const nKeys = sizesOf(result)[2];
  const one = (position ?? null) !== null;
  return (at, _, query, key) => {
    const row = result.values.subarray(at - key, at - key + nKeys);
    const hidden = !sees(seenOf({ nKeys, window: looking.window }, looking.causal, query), key);
    if (hidden && one) throw new Error(`the token at position ${query} cannot look at position ${key}`);
    const others = row.reduce((sum, weight, i) => (i === key ? sum : sum + weight), 0);
    if (!hidden && !others && value !== 1 && one) {
      throw new Error(`the token at position ${query} gives no other token any weight, so none can be scaled`);
    }
    if (hidden || !others) return;
    for (let i = 0; i < nKeys; i += 1) row[i] *= (1 - value) / others;
    row[key] = value;
  };
}

/** The shape as (head, position, last); classes of a text have the last axis alone. @param {Tensor} value */
function sizesOf({ shape }) {
  return /** @type {[number, number, number]} */ ([1, 1, ...shape].slice(-3));
}

/** Visits the cells that an edit is about. @param {Tensor} tensor @param {Partial<Edit>} edit @param {Visit} visit */
function forEach(tensor, { head, position, key, neuron }, visit) {
  const [nHeads, nPositions, nLast] = sizesOf(tensor);
  const range = (/** @type {number | null | undefined} */ one, /** @type {number} */ size) => ((one ?? null) === null ? [0, size] : [Number(one), Number(one) + 1]);
  const [heads, positions, lasts] = [range(head, nHeads), range(position, nPositions), range(key ?? neuron, nLast)];
  for (let h = heads[0]; h < heads[1]; h += 1) {
    for (let p = positions[0]; p < positions[1]; p += 1) {
      for (let last = lasts[0]; last < lasts[1]; last += 1) visit((h * nPositions + p) * nLast + last, h, p, last);
    }
  }
}

export class Plan {
  /**
   * Throws an Error for an edit that the model or the text has no place for.
   *
   * @param {Edit[]} edits
   * @param {Config} config
   * @param {number} length  tokens
   * @param {Sources} [sources]
   */
  constructor(edits, config, length, sources) {
    for (const edit of edits) checkEdit(edit, config, length);
    const hasHead = (/** @type {Edit} */ edit) => Number((edit.head ?? null) !== null);
    // Edits of all heads come first and those of single heads last: they are more specific.
    this.list = [...edits].sort((one, other) => hasHead(one) - hasHead(other));
    this.config = config;
    this.sources = sources;
  }

  /** The edits of a quantity. @param {string} name @param {number | null} layer */
  of(name, layer) {
    return this.list.filter((edit) => edit.quantity === name && (edit.layer ?? layer) === layer);
  }

  /** A quantity after all edits of it; the tensor given is left as it is. @param {string} name @param {Tensor} value @param {number | null} [layer] */
  changed(name, value, layer = null) {
    const edits = this.of(name, layer);
    if (!edits.length) return value;
    const result = { shape: value.shape, values: value.values.slice() };
    const source = (/** @type {keyof Sources} */ which) => {
      if (!this.sources) throw new Error(`this edit of ${name} has no pass to read from`);
      return this.sources[which]().read(name, layer);
    };
    for (const edit of edits) forEach(result, edit, CHANGES[edit.change]({ result, edit, looking: lookingOf(this.config, layer ?? 0), source }));
    return result;
  }

  /** The quantities of a layer that are edited. @param {number} layer */
  names(layer) {
    return NAMES.filter((name) => this.of(name, layer).length);
  }

  /** The first place at which something changes. @returns {{layer: number, name: string}} */
  get first() {
    if (this.of("embed", null).length) return { layer: 0, name: "embed" };
    const { n_layers: nLayers } = this.config;
    for (let layer = 0; layer < nLayers; layer += 1) {
      const [name] = this.names(layer);
      if (name) return { layer, name };
    }
    return { layer: nLayers, name: "logits" };
  }
}
