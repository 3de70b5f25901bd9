/** Vectors in a byte a number, as bytes written here by hand, and in half precision, as NumPy writes them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHalf, fromSteps, headFromSteps } from "../../viz/static/core/data/coded.js";

// Steps 0.5, 1, 2 and 0.25 in half precision; two heads of two positions of three numbers.
const STEPS = [0x3800, 0x3c00, 0x4000, 0x3400];
const CODES = [2, -4, 100, 1, 0, -1, 3, -100, 5, 8, -8, 4];
const SHAPE = [2, 2, 3];

function bytesOfHeads() {
  const bytes = Buffer.alloc(8 + 12);
  STEPS.forEach((step, i) => bytes.writeUInt16LE(step, 2 * i));
  CODES.forEach((code, i) => bytes.writeInt8(code, 8 + i));
  return new Uint8Array(bytes);
}

test("a number is its code times the step of its vector", () => {
  assert.deepEqual(Array.from(fromSteps(bytesOfHeads(), SHAPE)), [1, -2, 50, 1, 0, -1, 6, -200, 10, 2, -2, 1]);
  const { numbers, within } = headFromSteps(bytesOfHeads(), SHAPE, 1);
  assert.deepEqual(Array.from(numbers), [6, -200, 10, 2, -2, 1]);
  assert.equal(within, 1);
});

test("a rest puts a number into the middle of its part of the step, the first of a byte in its low bits", () => {
  // The second head: 3, -100, 5 of step 2 and 8, -8, 4 of a quarter. Parts 1, -2, 0, -1, 1, 0 of 4, of 16, of 256.
  const written = { 2: [0b11001001, 0b0001], 4: [0xe1, 0xf0, 0x01], 8: [1, 254, 0, 255, 1, 0] };
  for (const [bits, rests] of Object.entries(written)) {
    const { numbers, within } = headFromSteps(bytesOfHeads(), SHAPE, 1, Uint8Array.from(rests), Number(bits));
    const parts = [1.5, -1.5, 0.5, -0.5, 1.5, 0.5].map((part) => part / 2 ** Number(bits));
    assert.deepEqual(Array.from(numbers), [3, -100, 5, 8, -8, 4].map((code, i) => Math.fround((code + parts[i]) * (i < 3 ? 2 : 0.25))));
    assert.equal(within, 1 / 2 ** Number(bits));
  }
});

const NUMPY = [
  [0x0000, 0], [0x3c00, 1], [0xbc00, -1], [0x7bff, 65504], [0x3555, 0.333251953125],
  [0x0001, 5.960464477539063e-8], [0x03ff, 6.097555160522461e-5], [0x0400, 6.103515625e-5],
  [0x7c00, Infinity], [0xfc00, -Infinity], [0xb800, -0.5], [0x2e66, 0.0999755859375], [0x63d1, 1000.5], [0x7e00, NaN], [0x8000, -0],
];

test("half-precision numbers are NumPy's", () => {
  const numbers = fromHalf(Uint16Array.from(NUMPY, ([bits]) => bits));
  NUMPY.forEach(([bits, expected], i) => assert.ok(Object.is(numbers[i], expected), bits.toString(16)));
});
