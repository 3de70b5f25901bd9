/**
 * Numbers with a shape, and the few operations that a forward pass is made of.
 *
 * Values are single precision; sums are taken in double precision.
 */

import { ACTIVATIONS } from "../core/data/activations.js";
import { placedAt } from "../core/data/rotation.js";
import { timesRows } from "../core/data/softmax.js";

/**
 * @typedef {object} Tensor
 * @property {number[]} shape  without the batch
 * @property {Float32Array} values  the last axis lies together
 */

/** @param {number[]} shape @param {Float32Array} [values] @returns {Tensor} */
export function tensor(shape, values = new Float32Array(shape.reduce((a, b) => a * b, 1))) {
  return { shape, values };
}

/** x · wᵀ: (rows, width) and (columns, width) to (rows, columns). @param {Float32Array} x @param {Float32Array} w @param {number} rows @param {number} width @param {number} columns */
export function multiply(x, w, rows, width, columns) {
  const [out, own, sums] = [new Float32Array(rows * columns), new Float64Array(width), new Float64Array(columns)];
  for (let row = 0; row < rows; row += 1) {
    own.set(x.subarray(row * width, (row + 1) * width));
    out.set(timesRows(w, own, 0, columns, sums), row * columns);
  }
  return out;
}

/** Adds a row to every row, in place. @param {Float32Array} x @param {Float32Array} row */
export function addRow(x, row) {
  for (let from = 0; from < x.length; from += row.length) {
    for (let i = 0; i < row.length; i += 1) x[from + i] += row[i];
  }
}

/** @param {Tensor} one @param {Tensor} other @returns {Tensor} */
export function sum(one, other) {
  const values = one.values.slice();
  for (let i = 0; i < values.length; i += 1) values[i] += other.values[i];
  return tensor(one.shape, values);
}

/** cap · tanh(x / cap): values squeezed into −cap to cap. Without a cap they stay as they are. @param {Tensor} x @param {number | null} cap @returns {Tensor} */
export function softCapped(x, cap) {
  return cap === null ? x : tensor(x.shape, x.values.map((value) => cap * Math.tanh(value / cap)));
}

/**
 * (rows, columns, width) to (columns, rows, width): the heads of each position to the positions of each head, and back.
 *
 * @param {Float32Array} x
 * @param {number} rows
 * @param {number} columns
 * @param {number} [width]
 */
export function swapped(x, rows, columns, width = 1) {
  const out = new Float32Array(x.length);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const [from, to] = [(row * columns + column) * width, (column * rows + row) * width];
      for (let i = 0; i < width; i += 1) out[to + i] = x[from + i];
    }
  }
  return out;
}

/** The positions [first, end) of a tensor whose last axes are a position and its numbers. @param {Tensor} x @param {number} first @param {number} [end] */
export function rowsOf({ shape, values }, first, end = shape[shape.length - 2]) {
  const [positions, width] = shape.slice(-2);
  const out = tensor([...shape.slice(0, -2), end - first, width]);
  for (let from = 0, to = 0; from < values.length; from += positions * width, to += (end - first) * width) {
    out.values.set(values.subarray(from + first * width, from + end * width), to);
  }
  return out;
}

/** One position of it. @param {Tensor} x @param {number} position */
export function rowOf(x, position) {
  return rowsOf(x, position, position + 1);
}

/** The mean over all positions: (1, width). @param {Tensor} x @returns {Tensor} */
export function meanOf({ shape: [positions, width], values }) {
  const means = new Float64Array(width);
  for (let i = 0; i < values.length; i += 1) means[i % width] += values[i] / positions;
  return tensor([1, width], Float32Array.from(means));
}

/** The first positions of one tensor, and those of another behind them. @param {Tensor} one @param {number} count @param {Tensor} behind @returns {Tensor} */
export function joined(one, count, behind) {
  const [[all, width], [more]] = [one.shape.slice(-2), behind.shape.slice(-2)];
  const out = tensor([...one.shape.slice(0, -2), count + more, width]);
  for (let part = 0; part < one.values.length / all / width; part += 1) {
    const to = part * (count + more) * width;
    out.values.set(one.values.subarray(part * all * width, (part * all + count) * width), to);
    out.values.set(behind.values.subarray(part * more * width, (part + 1) * more * width), to + count * width);
  }
  return out;
}

/** Between −SIDE and SIDE an activation is read from cubics, STEPS of them to each 1, which single precision does not tell from it. */
const SIDE = 8, STEPS = 64;
/** By activation: the four numbers of each cubic. @type {Map<string, Float64Array>} */
const TABLES = new Map();

/** @param {string} activation */
function tableOf(activation) {
  const f = ACTIVATIONS[activation];
  const table = new Float64Array(8 * SIDE * STEPS);
  for (let i = 0; i < table.length; i += 4) {
    // The value at both ends, and the slope by a step.
    const [from, to] = [i / 4, i / 4 + 1].map((place) => place / STEPS - SIDE);
    const [first, last] = [from, to].map((x) => (f(x + 1e-4) - f(x - 1e-4)) / 2e-4 / STEPS);
    const rise = f(to) - f(from);
    table.set([f(from), first, 3 * rise - 2 * first - last, first + last - 2 * rise], i);
  }
  return table;
}

/** activation(x). @param {Tensor} x @param {string} activation @returns {Tensor} */
export function activate({ shape, values }, activation) {
  const f = ACTIVATIONS[activation];
  const out = new Float32Array(values.length);
  // A corner is no cubic.
  const table = activation === "relu" ? null : TABLES.get(activation) ?? tableOf(activation);
  if (table) TABLES.set(activation, table);
  for (let i = 0; i < out.length; i += 1) {
    const x = values[i];
    if (!table || !(x > -SIDE && x < SIDE)) {
      out[i] = f(x);
      continue;
    }
    const at = (x + SIDE) * STEPS, place = Math.floor(at), t = at - place, k = 4 * place;
    out[i] = table[k] + t * (table[k + 1] + t * (table[k + 2] + t * table[k + 3]));
  }
  return { shape, values: out };
}

/** The vectors, each turned by where its token stands: the first of them at `first`. @param {Tensor} vectors  (head, position, d_head) @param {import("../core/data/rotation.js").Rotary} rotary @param {number} first */
export function turned({ shape, values }, rotary, first) {
  const [heads, positions, width] = shape;
  const out = tensor(shape);
  for (let row = 0; row < heads * positions; row += 1) {
    out.values.set(placedAt(values.subarray(row * width, (row + 1) * width), rotary, first + (row % positions)), row * width);
  }
  return out;
}
