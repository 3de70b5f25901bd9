/** Products with packed weights, in each program and in the script, beside plain sums in double precision. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";

// Version 20 of Node has relaxed SIMD behind a flag.
setFlagsFromString("--experimental-wasm-relaxed-simd");
const worker = readFileSync("viz/built/worker.js", "utf8");
const [relaxed, plain] = [...worker.matchAll(/"(AGFzbQ[\w+/=]+)"/g)].map(([, bytes]) => bytes);
const ENGINES = { relaxed: [relaxed, plain], plain: [plain], script: [], forbidden: ["AAAA"] };

const draw = (seed) => () => (seed = (seed * 48271) % 2147483647) / 2147483647;
/** Some number of each kind, as it is stored and as it is meant; float16 has subnormal ones. */
const NUMBERS = {
  float32: (random) => [2 * random() - 1].map(Math.fround).flatMap((x) => [x, x]),
  bfloat16: (random) => {
    const bits = (Math.floor(random() * 2) << 15) | (118 + Math.floor(random() * 10)) << 7 | Math.floor(random() * 128);
    return [bits, new Float32Array(new Uint32Array([bits << 16]).buffer)[0]];
  },
  float16: (random) => {
    const [sign, exponent, fraction] = [random() < 0.5 ? 0 : 1, Math.floor(random() * 16), Math.floor(random() * 1024)];
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return [(sign << 15) | (exponent << 10) | fraction, sign ? -size : size];
  },
  int8: (random) => [Math.floor(random() * 255) - 127].flatMap((x) => [x, x]),
};
const ARRAY = { float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, int8: Int8Array };

for (const [name, programs] of Object.entries(ENGINES)) {
  globalThis.PRODUCTS = programs;
  const { Matrix, productOf } = await import(`../../viz/static/engine/product.js?${name}`);
  test(`${name}: every kind, shape and part of a matrix`, () => {
    const random = draw(7);
    const upTo = (most) => 1 + Math.floor(random() * most);
    for (let n = 0; n < 80; n += 1) {
      const kind = Object.keys(NUMBERS)[n % 4];
      const [rows, width, count] = [upTo(70), upTo(50), n % 5 ? upTo(9) : 1];
      const numbers = Array.from({ length: rows * width }, () => NUMBERS[kind](random));
      const stored = ARRAY[kind].from(numbers, ([bits]) => bits);
      const matrix = new Matrix(kind, rows, width);
      if (n % 2) matrix.putColumns(0, ARRAY[kind].from({ length: rows * width }, (_, i) => stored[(i % rows) * width + Math.floor(i / rows)]));
      else for (let row = 0; row < rows; row += 7) matrix.put(row, stored.subarray(row * width, (row + 7) * width));
      const scales = Float32Array.from({ length: rows }, () => (kind === "int8" ? random() / 100 : 1));
      if (kind === "int8") matrix.scales.set(scales);
      const w = (row, column) => numbers[row * width + column][1] * scales[row];
      const first = n % 3 ? 0 : Math.floor(random() * width);
      const part = { first, width: n % 3 ? width : upTo(width - first) };
      const x = Float32Array.from({ length: count * part.width }, () => 2 * random() - 1);
      const bias = n % 7 ? Float32Array.from({ length: rows }, () => 2 * random() - 1) : null;
      const found = [matrix.times(x, count, bias, part)];
      // A factor that is no weight, in the place where the last one was.
      if (kind === "float32" && part.width === width) {
        const turned = Float32Array.from({ length: rows * width }, (_, i) => stored[(i % rows) * width + Math.floor(i / rows)]);
        found.push(productOf(x, stored, count, width, rows), productOf(x, turned, count, width, rows, true));
      }
      for (const one of found) assert.equal(one.length, count * rows);
      for (let row = 0; row < rows; row += 1) {
        assert.deepEqual([...matrix.slice(row)], Array.from({ length: width }, (_, i) => Math.fround(w(row, i))));
        for (let i = 0; i < count; i += 1) {
          let [sum, size] = [0, 0];
          for (let j = 0; j < part.width; j += 1) {
            const term = x[i * part.width + j] * w(row, part.first + j);
            sum += term;
            size += Math.abs(term);
          }
          for (const [k, one] of found.entries()) assert.ok(Math.abs(one[i * rows + row] - sum - (k ? 0 : bias?.[row] ?? 0)) <= 4e-6 * (size + (k ? 0 : 1)), `${kind} ${[count, width, rows]}`);
        }
      }
    }
  });
}
