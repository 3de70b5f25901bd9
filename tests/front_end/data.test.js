/** Blocks of a page unpacked: packed here by Node's own zlib and base64. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { blocksOfText } from "../../viz/static/core/data/packed.js";
import { unpack, unpackPart } from "../../viz/static/core/data/data.js";
import { turnedBy, unturned } from "../../viz/static/core/data/rotation.js";
import { assertNear } from "./near.js";

const asBlocks = (bytes) => blocksOfText(async () => Buffer.from(bytes).toString("base64"));

function entryOf(entry) {
  return { block: "b", quantity: "probs", layer: 0, head: null, coding: "sqrt", packing: "none", triangle: false, ...entry };
}

test("bytes come back as they were, deflated or not", async () => {
  const bytes = Uint8Array.from({ length: 1000 }, (_, i) => (i * 7) % 256);
  const plain = entryOf({ dtype: "uint8", shape: [10, 10, 10] });
  assert.deepEqual(await unpack(plain, asBlocks(bytes)), bytes);
  assert.deepEqual(await unpack({ ...plain, packing: "deflate" }, asBlocks(deflateSync(bytes))), bytes);
});

test("a triangle gets its zeros back, head by head", async () => {
  const entry = entryOf({ dtype: "uint8", shape: [2, 3, 3], triangle: true });
  const codes = await unpack(entry, asBlocks(Uint8Array.from({ length: 12 }, (_, i) => i + 1)));
  assert.deepEqual(Array.from(codes), [1, 0, 0, 2, 3, 0, 4, 5, 6, 7, 0, 0, 8, 9, 0, 10, 11, 12]);
});

test("vectors are single precision, whichever way they were stored", async () => {
  const numbers = [0.1, -2.5, 1e-30, 7];
  const bytes = Buffer.alloc(16);
  numbers.forEach((number, i) => bytes.writeFloatLE(number, 4 * i));
  const exact = await unpack(entryOf({ dtype: "float32", shape: [2, 2] }), asBlocks(bytes));
  assert.deepEqual(Array.from(exact), numbers.map(Math.fround));
  const halves = Buffer.from([0x00, 0x3c, 0x00, 0xb8]);
  const rounded = await unpack(entryOf({ dtype: "float16", shape: [1, 2] }), asBlocks(halves));
  assert.deepEqual(Array.from(rounded), [1, -0.5]);
});

test("a part of the vectors is what the whole has there, wherever it begins", async () => {
  const bytes = Uint8Array.from({ length: 4 * 60 }, (_, i) => (i * 37 + 5) % 97);
  for (const dtype of ["float16", "float32"]) {
    const entry = entryOf({ dtype, shape: [5, 3, 4] });
    const blocks = asBlocks(dtype === "float16" ? bytes.subarray(0, 120) : bytes);
    const whole = await unpack(entry, blocks);
    for (const from of [0, 1, 12, 24, 47, 48]) {
      assert.deepEqual(await unpackPart(entry, blocks, from, 12), whole.slice(from, from + 12));
    }
  }
});

test("a vector that is turned back has the numbers from before, without the amplitude", () => {
  const rotary = { amplitude: 1.5, frequencies: [1, 0.1] };
  // The fifth number is not turned.
  const key = [0.5, -1, 2, 1, -1];
  const placed = turnedBy(key, rotary, 0, 2).map((value, i) => (i < 4 ? value * 1.5 : value));
  assertNear(unturned(placed, rotary, 2), key, 1e-12);
});
