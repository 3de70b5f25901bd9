/**
 * The weights of a model by the names that they have in Python (`model.named_parameters()`), unpacked
 * to single precision when they are first asked for.
 *
 * @typedef {object} WeightEntry
 * @property {string} name
 * @property {number[]} shape
 * @property {"float16" | "float32"} dtype  bytes are little-endian
 * @property {number} from  the first byte
 */

import { fromHalf } from "../core/data/coded.js";

export class Weights {
  /**
   * @param {WeightEntry[]} entries
   * @param {ArrayBuffer} bytes
   */
  constructor(entries, bytes) {
    this.entries = new Map(entries.map((entry) => [entry.name, entry]));
    this.bytes = bytes;
  }

  /** @param {string} name */
  has(name) {
    return this.entries.has(name);
  }

  /**
   * @param {string} name
   * @returns {import("./tensor.js").Tensor}
   */
  get(name) {
    const entry = this.entries.get(name);
    if (!entry) throw new RangeError(`the model in this file has no weight ${name}`);
    return { shape: entry.shape, values: this.unpacked(entry, 0, size(entry.shape)) };
  }

  /**
   * @param {WeightEntry} entry
   * @param {number} first
   * @param {number} count
   */
  unpacked({ dtype, from }, first, count) {
    return dtype === "float16"
      ? fromHalf(new Uint16Array(this.bytes, from + 2 * first, count))
      : new Float32Array(this.bytes, from + 4 * first, count);
  }

  /**
   * A weight, or one row of it, to be given away; null where there is none of this name.
   *
   * @param {string} name
   * @param {number | null} row
   * @returns {import("./tensor.js").Tensor | null}
   */
  row(name, row) {
    const entry = this.entries.get(name);
    if (!entry) return null;
    const [rows, ...rest] = entry.shape;
    if (row !== null && !(row >= 0 && row < rows)) throw new RangeError(`${name} has ${rows} rows; there is no row ${row}`);
    const shape = row === null ? entry.shape : rest;
    return { shape, values: this.unpacked(entry, (row ?? 0) * size(rest), size(shape)).slice() };
  }
}

/** @param {number[]} shape */
function size(shape) {
  return shape.reduce((a, b) => a * b, 1);
}
