/** Bits and numbers of NumPy's float16, and the definition of IEEE 754 binary16. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHalf } from "../../viz/static/core/data/coded.js";

const NUMPY = [
  [0x0000, 0], [0x3c00, 1], [0xbc00, -1], [0x7bff, 65504], [0x3555, 0.333251953125],
  [0x0001, 5.960464477539063e-8], [0x03ff, 6.097555160522461e-5], [0x0400, 6.103515625e-5],
  [0x7c00, Infinity], [0xfc00, -Infinity], [0xb800, -0.5], [0x2e66, 0.0999755859375], [0x63d1, 1000.5],
];

test("half-precision numbers are NumPy's", () => {
  const numbers = fromHalf(Uint16Array.from(NUMPY, ([bits]) => bits));
  NUMPY.forEach(([bits, expected], i) => assert.equal(numbers[i], expected, bits.toString(16)));
});

test("what is no number stays none, and minus zero keeps its sign", () => {
  const numbers = fromHalf(Uint16Array.of(0x7e00, 0xfe01, 0x8000));
  assert.ok(Number.isNaN(numbers[0]) && Number.isNaN(numbers[1]));
  assert.ok(Object.is(numbers[2], -0));
});
