/**
 * What can be edited: quantities and their axes, and edits that have a place.
 *
 * @typedef {import("./engine.js").Edit} Edit
 */

import { LAYER_QUANTITIES } from "./layer.js";
import { predicts } from "./predictions.js";

/** @type {Record<string, string[]>} */
const WITHOUT_LAYER = { embed: ["position", "d_model"], logits: ["position", "vocab"] };
const MATRICES = ["scores", "probs"];
const CHANGES = ["zero", "mean", "text", "set", "hide"];

/** The axes of a quantity. @param {string} name */
export function axesOf(name) {
  return WITHOUT_LAYER[name] ?? LAYER_QUANTITIES[/** @type {import("./layer.js").Name} */ (name)].axes;
}

/**
 * Throws an Error for an edit that the model or the text has no place for.
 *
 * @param {Edit} edit
 * @param {import("./model.js").Config} config
 * @param {number} length  tokens
 */
export function checkEdit(edit, config, length) {
  const { quantity, change } = edit;
  if (!Object.hasOwn(LAYER_QUANTITIES, quantity) && !Object.hasOwn(WITHOUT_LAYER, quantity)) {
    throw new Error(`${quantity} cannot be edited; there are embed, ${Object.keys(LAYER_QUANTITIES).join(", ")} and logits`);
  }
  if (!CHANGES.includes(change)) throw new Error(`${change} is no change; there are ${CHANGES.join(", ")}`);
  if (config.absent.includes(quantity)) throw new Error(`${config.name} has no ${quantity}`);
  checkNumbers(edit, config, length);
  checkChange(edit);
}

/**
 * @param {Edit} edit
 * @param {import("./model.js").Config} config
 * @param {number} length
 */
function checkNumbers(edit, config, length) {
  const axes = axesOf(edit.quantity);
  const matrix = MATRICES.includes(edit.quantity);
  const classes = edit.quantity === "logits" && predicts(config) === "classes";
  const lengths = { d_head: config.d_head, d_model: config.d_model, d_mlp: config.d_mlp, vocab: classes ? config.labels.length : config.vocab_size };
  const last = /** @type {keyof typeof lengths} */ (axes[axes.length - 1]);
  checkNumber(edit, "layer", edit.quantity in WITHOUT_LAYER ? 0 : config.n_layers);
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
