/**
 * Weights, and products with them: in WebAssembly where the browser has it with SIMD, else in the script. The programs
 * are simd.ts, compiled; `npm run build` puts them in the place of `globalThis.PRODUCTS`.
 *
 * @typedef {"float32" | "float16" | "bfloat16" | "int8"} Kind  how a number is stored; int8: codes, with a scale a row
 * @typedef {Float32Array | Uint16Array | Int8Array} Stored  float16 and bfloat16 are their bits
 */

import { fromHalf } from "../core/data/coded.js";
import { fromBase64 } from "../core/data/packed.js";
import { addRow, multiply, swapped } from "./tensor.js";

/** Rows of W whose numbers lie together, and what their number is filled up to (simd.ts). */
const LANES = 8;
const FILLED = 32;
/** Rows that the script takes out of the panels at a time. */
const AT_ONCE = 256;
/** Fewer multiplications than this are not worth packing a factor that is used once. */
const WORTH = 2 ** 14;
const PAGE = 2 ** 16;
/** The array of what is stored. */
export const KINDS = { float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, int8: Int8Array };

/** Numbers as single precision. @param {Kind} kind @param {Stored} stored @returns {Float32Array} */
export function single(kind, stored) {
  if (stored instanceof Float32Array) return stored;
  if (kind === "float16") return fromHalf(/** @type {Uint16Array} */ (stored));
  if (kind === "bfloat16") return new Float32Array(Uint32Array.from(stored, (bits) => bits << 16).buffer);
  return Float32Array.from(stored);
}

/** Runs simd.ts. Its memory holds all matrices, and behind them what a product needs while it runs. */
class Program {
  /** @param {WebAssembly.Module} module */
  constructor(module) {
    this.memory = new WebAssembly.Memory({ initial: 1 });
    this.run = /** @type {Record<Kind, (...given: number[]) => void>} */ (/** @type {unknown} */ (new WebAssembly.Instance(module, { env: { memory: this.memory } }).exports));
    this.end = PAGE;
  }

  /** Makes room up to this byte. @param {number} end */
  reach(end) {
    const missing = Math.ceil((end - this.memory.buffer.byteLength) / PAGE);
    if (missing <= 0) return;
    try {
      this.memory.grow(missing);
    } catch {
      throw new RangeError(`the browser has no room for ${(end / 1e9).toFixed(1)} GB of weights`);
    }
  }

  /** The place of so many bytes, which stay. @param {number} bytes */
  allocate(bytes) {
    const at = this.end;
    this.reach(at + bytes);
    this.end = at + Math.ceil(bytes / 16) * 16;
    return at;
  }

  /** @param {number} at @param {number} count */
  floats(at, count) {
    return new Float32Array(this.memory.buffer, at, count);
  }

  /**
   * @param {Matrix} matrix
   * @param {Float32Array} x
   * @param {number} rows
   * @param {{first: number, width: number}} part  the columns that are read
   * @param {Float32Array | null} bias
   * @returns {Float32Array}  (rows, matrix.rows)
   */
  times(matrix, x, rows, { first, width }, bias) {
    const filled = rows === 1 ? 1 : Math.ceil(rows / 4) * 4;
    const columns = matrix.filled;
    const [from, biasAt] = [this.end, this.end + Math.ceil(filled * width / 4) * 16];
    const out = biasAt + 4 * columns;
    this.reach(out + 4 * filled * columns);
    const input = this.floats(from, filled * width);
    if (rows === 1) input.set(x.subarray(0, width));
    else interleave(input, x, rows, width);
    if (bias) this.floats(biasAt, columns).set(bias);
    const start = matrix.at + first * LANES * KINDS[matrix.kind].BYTES_PER_ELEMENT;
    this.run[matrix.kind](from, start, matrix.scalesAt, bias ? biasAt : 0, out, filled, width, columns / LANES, matrix.width);
    if (columns === matrix.rows) return this.floats(out, rows * columns).slice();
    const made = new Float32Array(rows * matrix.rows);
    for (let row = 0; row < rows; row += 1) made.set(this.floats(out + 4 * row * columns, matrix.rows), row * matrix.rows);
    return made;
  }
}

/** Of four rows the numbers of each column together, with rows of zeros behind the last. @param {Float32Array} to @param {Float32Array} x @param {number} rows @param {number} width */
function interleave(to, x, rows, width) {
  if (rows % 4) to.fill(0);
  for (let row = 0; row < rows; row += 1) {
    const first = (row - (row % 4)) * width + (row % 4);
    for (let i = 0, from = row * width; i < width; i += 1) to[first + 4 * i] = x[from + i];
  }
}

/** The program that this browser runs; null where it runs none. @returns {Program | null} */
function started() {
  const programs = /** @type {string[]} */ (/** @type {any} */ (globalThis).PRODUCTS ?? []);
  if (typeof WebAssembly === "undefined") return null;
  for (const bytes of programs.map(fromBase64)) {
    // A page may forbid what the browser can do.
    try {
      if (WebAssembly.validate(/** @type {BufferSource} */ (bytes))) return new Program(new WebAssembly.Module(/** @type {BufferSource} */ (bytes)));
    } catch {
      return null;
    }
  }
  return null;
}

const program = started();

/** W of x · Wᵀ + b, or a table: (rows, width), in the panels that simd.ts reads. */
export class Matrix {
  /** Zeros, to be put in. @param {Kind} kind @param {number} rows @param {number} width */
  constructor(kind, rows, width) {
    this.kind = kind;
    this.rows = rows;
    this.width = width;
    this.filled = Math.ceil(rows / FILLED) * FILLED;
    const [count, size] = [this.filled * width, KINDS[kind].BYTES_PER_ELEMENT];
    /** Where it lies in the program's memory. */
    this.at = program ? program.allocate(count * size) : 0;
    this.scalesAt = program && kind === "int8" ? program.allocate(4 * this.filled) : 0;
    this.own = program ? null : { values: new KINDS[kind](count), scales: new Float32Array(this.filled) };
  }

  /** All stored numbers, in panels. @returns {Stored} */
  get values() {
    return this.own?.values ?? new KINDS[this.kind](/** @type {Program} */ (program).memory.buffer, this.at, this.filled * this.width);
  }

  get scales() {
    return this.own?.scales ?? /** @type {Program} */ (program).floats(this.scalesAt, this.filled);
  }

  /** Puts rows in, one behind the other. @param {number} first @param {Stored} given */
  put(first, given) {
    const { values, width } = this;
    for (let row = first, from = 0; from < given.length; row += 1, from += width) {
      const to = this.place(row);
      for (let i = 0; i < width; i += 1) values[to + i * LANES] = given[from + i];
    }
  }

  /** Puts columns in, one behind the other, each the part of one of `length` that begins at `start`. @param {number} first @param {Stored} given @param {number} [length] @param {number} [start] */
  putColumns(first, given, length = this.rows, start = 0) {
    const { values, rows } = this;
    for (let row = 0; row < rows; row += LANES) {
      const to = this.place(row), count = Math.min(LANES, rows - row);
      for (let column = first, from = start + row; from < given.length; column += 1, from += length) {
        for (let lane = 0; lane < count; lane += 1) values[to + column * LANES + lane] = given[from + lane];
      }
    }
  }

  /** Where the first number of a row lies among the values. @param {number} row */
  place(row) {
    return (row - (row % LANES)) * this.width + (row % LANES);
  }

  /** (rows) of W. @param {number} first @param {number} [count] @returns {Float32Array} */
  slice(first, count = 1) {
    const { values, width, kind } = this;
    const found = new KINDS[kind](count * width);
    for (let row = 0, to = 0; row < count; row += 1) {
      for (let from = this.place(first + row), i = 0; i < width; i += 1, to += 1) found[to] = values[from + i * LANES];
    }
    const numbers = single(kind, found);
    const scales = kind === "int8" ? this.scales : null;
    if (scales) for (let i = 0; i < numbers.length; i += 1) numbers[i] *= scales[first + Math.floor(i / width)];
    return numbers;
  }

  /**
   * x · Wᵀ + b: (count, width) to (count, rows), or with those columns of W alone that stand in `part`.
   *
   * @param {Float32Array} x
   * @param {number} count
   * @param {Float32Array | null} [bias]
   * @param {{first: number, width: number}} [part]
   */
  times(x, count, bias = null, part = { first: 0, width: this.width }) {
    if (program) return program.times(this, x, count, part, bias);
    const made = this.inScript(x, count, part);
    if (bias) addRow(made, bias);
    return made;
  }

  /** @param {Float32Array} x @param {number} count @param {{first: number, width: number}} part */
  inScript(x, count, { first, width }) {
    const out = new Float32Array(count * this.rows);
    for (let row = 0; row < this.rows; row += AT_ONCE) {
      const taken = Math.min(AT_ONCE, this.rows - row);
      const whole = this.slice(row, taken);
      const own = width === this.width ? whole : columnsOf(whole, this.width, first, width);
      const made = multiply(x, own, count, width, taken);
      for (let i = 0; i < count; i += 1) out.set(made.subarray(i * taken, (i + 1) * taken), i * this.rows + row);
    }
    return out;
  }
}

/** @param {Float32Array} x @param {number} all @param {number} first @param {number} width */
function columnsOf(x, all, first, width) {
  const rows = x.length / all;
  const out = new Float32Array(rows * width);
  for (let row = 0; row < rows; row += 1) out.set(x.subarray(row * all + first, row * all + first + width), row * width);
  return out;
}

/** x · wᵀ of two factors that are no weights: (rows, width) and (columns, width), or (width, columns) of a w that is turned. @param {Float32Array} x @param {Float32Array} w @param {number} rows @param {number} width @param {number} columns @param {boolean} [turned] */
export function productOf(x, w, rows, width, columns, turned = false) {
  if (!program || rows * width * columns < WORTH) return multiply(x, turned ? swapped(w, width, columns) : w, rows, width, columns);
  const { end } = program;
  const once = new Matrix("float32", columns, width);
  if (turned) once.putColumns(0, w);
  else once.put(0, w);
  const made = once.times(x, rows);
  program.end = end;
  return made;
}
