/**
 * Numbers with a shape, and the few operations that a forward pass is made of.
 *
 * Values are single precision; sums are taken in double precision.
 */

import { ACTIVATIONS } from "../core/data/activations.js";
import { turnedBy } from "../core/data/rotation.js";

/**
 * @typedef {object} Tensor
 * @property {number[]} shape  without the batch
 * @property {Float32Array} values  the last axis lies together
 */


/** @param {number[]} shape @param {Float32Array} [values] @returns {Tensor} */
export function tensor(shape, values = new Float32Array(shape.reduce((a, b) => a * b, 1))) {
  return { shape, values };
}

/** Rows that are multiplied at a time: four rows and two columns are eight sums, which fit the registers. */
const ROWS = 4;

/** The left factor in double precision, with rows of zeros behind it up to a multiple of ROWS. */
let left = new Float64Array(0);

/**
 * x · wᵀ: (rows, width) and (columns, width) to (rows, columns).
 *
 * @param {Float32Array} x
 * @param {Float32Array} w
 * @param {number} rows
 * @param {number} width
 * @param {number} columns
 * @returns {Float32Array}
 */
export function multiply(x, w, rows, width, columns) {
  if (rows === 1) return oneRow(x, w, width, columns);
  const filled = Math.ceil(rows / ROWS) * ROWS;
  if (left.length < filled * width) left = new Float64Array(filled * width);
  left.set(x.length === rows * width ? x : x.subarray(0, rows * width));
  left.fill(0, rows * width, filled * width);
  const out = new Float32Array(filled * columns);
  for (let row = 0; row < filled; row += ROWS) fourRows(left, w, row, width, columns, out);
  return filled === rows ? out : out.slice(0, rows * columns);
}

/**
 * @param {Float64Array} x
 * @param {Float32Array} w
 * @param {number} row
 * @param {number} width
 * @param {number} columns
 * @param {Float32Array} out
 */
function fourRows(x, w, row, width, columns, out) {
  const first = row * width;
  const [second, third, fourth] = [first + width, first + 2 * width, first + 3 * width];
  for (let column = 0; column < columns; column += 2) {
    const from = column * width;
    // Of an odd number of columns the last is taken twice.
    const other = column + 1 < columns ? from + width : from;
    let a0 = 0, a1 = 0, b0 = 0, b1 = 0, c0 = 0, c1 = 0, d0 = 0, d1 = 0;
    for (let i = 0; i < width; i += 1) {
      const u = w[from + i], v = w[other + i];
      const a = x[first + i], b = x[second + i];
      a0 += a * u;
      a1 += a * v;
      b0 += b * u;
      b1 += b * v;
      const c = x[third + i], d = x[fourth + i];
      c0 += c * u;
      c1 += c * v;
      d0 += d * u;
      d1 += d * v;
    }
    const to = row * columns + column;
    out[to] = a0;
    out[to + columns] = b0;
    out[to + 2 * columns] = c0;
    out[to + 3 * columns] = d0;
    if (other === from) continue;
    out[to + 1] = a1;
    out[to + columns + 1] = b1;
    out[to + 2 * columns + 1] = c1;
    out[to + 3 * columns + 1] = d1;
  }
}

/**
 * The same of one row, as a prediction is made of: four columns at a time.
 *
 * @param {Float32Array} x
 * @param {Float32Array} w
 * @param {number} width
 * @param {number} columns
 * @returns {Float32Array}
 */
function oneRow(x, w, width, columns) {
  const row = Float64Array.from(x.subarray(0, width));
  const out = new Float32Array(columns);
  for (let column = 0; column < columns; column += 4) {
    // Of a number of columns that is not a multiple of four some are taken twice.
    const from = Math.max(0, Math.min(column, columns - 4));
    const first = from * width;
    const [second, third, fourth] = [1, 2, 3].map((more) => Math.min(from + more, columns - 1) * width);
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < width; i += 1) {
      const own = row[i];
      a += own * w[first + i];
      b += own * w[second + i];
      c += own * w[third + i];
      d += own * w[fourth + i];
    }
    out[from] = a;
    out[from + 1] = b;
    out[from + 2] = c;
    out[from + 3] = d;
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

/**
 * (x − mean) / sqrt(variance + eps) · weight + bias over the last axis; not centred, the mean counts as 0.
 *
 * @param {Tensor} x
 * @param {Float32Array} weight
 * @param {Float32Array | null} bias
 * @param {{eps: number, centred: boolean}} norm
 * @returns {Tensor}
 */
export function normed(x, weight, bias, { eps, centred }) {
  const width = weight.length;
  const values = new Float32Array(x.values.length);
  for (let from = 0; from < values.length; from += width) {
    let mean = 0;
    if (centred) for (let i = 0; i < width; i += 1) mean += x.values[from + i];
    mean /= width;
    let variance = 0;
    for (let i = 0; i < width; i += 1) variance += (x.values[from + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / width + eps);
    for (let i = 0; i < width; i += 1) values[from + i] = (x.values[from + i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
  }
  return tensor(x.shape, values);
}

/**
 * cap · tanh(x / cap): values squeezed into −cap to cap. Without a cap they stay as they are.
 *
 * @param {Tensor} x
 * @param {number | null} cap
 * @returns {Tensor}
 */
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
/** By activation: the value at each place, and its slope by a step. @type {Map<string, Float64Array>} */
const TABLES = new Map();

/** @param {string} activation */
function tableOf(activation) {
  const f = ACTIVATIONS[activation];
  const table = new Float64Array(2 * (2 * SIDE * STEPS + 1));
  for (let i = 0; i < table.length; i += 2) {
    const x = i / 2 / STEPS - SIDE;
    table[i] = f(x);
    table[i + 1] = (f(x + 1e-4) - f(x - 1e-4)) / 2e-4 / STEPS;
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
    const at = (x + SIDE) * STEPS, place = Math.floor(at), t = at - place, k = 2 * place;
    const rise = table[k + 2] - table[k];
    out[i] = table[k] + t * (table[k + 1] + t * (3 * rise - 2 * table[k + 1] - table[k + 3] + t * (table[k + 1] + table[k + 3] - 2 * rise)));
  }
  return { shape, values: out };
}

/**
 * The vectors, each turned by where its token stands: the first of them at `first`.
 *
 * @param {Tensor} vectors  (head, position, d_head)
 * @param {import("../core/data/rotation.js").Rotary} rotary
 * @param {number} first
 */
export function turned({ shape, values }, rotary, first) {
  const [heads, positions, width] = shape;
  const side = 2 * rotary.frequencies.length;
  const out = tensor(shape);
  for (let row = 0; row < heads * positions; row += 1) {
    const own = turnedBy(values.subarray(row * width, (row + 1) * width), rotary, 0, first + (row % positions));
    for (let i = 0; i < side; i += 1) own[i] *= rotary.amplitude;
    out.values.set(own, row * width);
  }
  return out;
}
