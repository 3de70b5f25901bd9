/** Blocks of a page unpacked: packed here by Node's own zlib and base64. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { blocksOfText } from "../../viz/static/core/data/packed.js";
import { unpack, unpackPart } from "../../viz/static/core/data/data.js";
import { Example } from "../../viz/static/core/data/example.js";
import { productApart, turnedBy, unturned } from "../../viz/static/core/data/rotation.js";
import { sharing } from "../../viz/static/core/data/sharing.js";
import { assertNear, tokensOf } from "./near.js";

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

function exampleOf(arrays, blocks, more = {}) {
  const header = {
    tokens: tokensOf("a", "b"), key_tokens: null, layers: [3], heads: [1, 6], causal: false, scale: [1], edited: false,
    sizes: { n_layers: 4, n_heads: 8, d_head: 2 },
    arrays, ...more,
  };
  return new Example(header, blocksOfText(async (name) => Buffer.from(blocks[name]).toString("base64")), 0);
}

const floats = (...numbers) => new Uint8Array(Float32Array.from(numbers).buffer);
const vector = (quantity) => entryOf({ block: quantity, quantity, layer: 3, dtype: "float32", shape: [2, 2, 1], coding: "plain" });

test("a head's weights are those of its codes", async () => {
  const probs = entryOf({ layer: 3, dtype: "uint8", shape: [2, 2, 2] });
  const example = exampleOf([probs], { b: Uint8Array.of(0, 255, 51, 102, 10, 20, 30, 40) });
  assertNear(await example.head(3, 1), [0, 1, 0.04, 0.16], 1e-7);
  assertNear(await example.head(3, 6), [10, 20, 30, 40].map((code) => (code / 255) ** 2), 1e-7);
});

test("where query and key are there, the weights are their softmax, head by head", async () => {
  const blocks = { query: floats(1, 2, 3, 0), key: floats(0, 1, -1, 1) };
  const example = exampleOf([vector("query"), vector("key")], blocks);
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  assertNear(await example.head(3, 1), [sigmoid(-1), sigmoid(1), sigmoid(-2), sigmoid(2)], 1e-7);
  assertNear(await example.head(3, 6), [sigmoid(-6), sigmoid(6), 0.5, 0.5], 1e-7);
  const { codes } = await example.layer(3);
  assertNear(Array.from(codes.subarray(4), (code) => code), [13, 255, 180, 180], 0);
});

test("heads that share a key-value head read the same key, each with its own query", async () => {
  const blocks = { query: floats(1, 2, 3, 0), key: floats(0, 1) };
  const key = { ...vector("key"), shape: [1, 2, 1] };
  const sizes = { n_layers: 4, n_heads: 8, n_kv_heads: 1, d_head: 1 };
  const example = exampleOf([vector("query"), key], blocks, { sizes });
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  assertNear(await example.head(3, 1), [sigmoid(-1), sigmoid(1), sigmoid(-2), sigmoid(2)], 1e-7);
  assertNear(await example.head(3, 6), [sigmoid(-3), sigmoid(3), 0.5, 0.5], 1e-7);
  assert.equal(sharing(example, 6), "All 8 heads share one key-value head.");
  const four = exampleOf([], {}, { sizes: { ...sizes, n_kv_heads: 4 } });
  assert.deepEqual([four.keyHeads, sharing(four, 6)], [[0, 3], "Heads 6 and 7 share key-value head 3."]);
  const two = exampleOf([], {}, { sizes: { ...sizes, n_kv_heads: 2 } });
  assert.equal(sharing(two, 6), "Heads 4 to 7 share key-value head 1.");
});

test("a product of turned vectors depends on how far apart two tokens are alone", () => {
  const rotary = { amplitude: 1.5, frequencies: [1, 0.1] };
  // The fifth number is not turned.
  const [query, key] = [[1, 2, -0.5, 0.25, 3], [0.5, -1, 2, 1, -1]];
  const dot = (one, other) => one.reduce((sum, value, i) => sum + value * other[i], 0);
  const placed = (numbers, at) => turnedBy(numbers, rotary, 0, at);
  const three = dot(placed(query, 5), placed(key, 2));
  assertNear([dot(placed(query, 9), placed(key, 6))], [three], 1e-12);
  const far = dot(placed(query, 9), placed(key, 2));
  assertNear([productApart(placed(query, 5), placed(key, 2), rotary, { at: 5, keyAt: 2, apart: 7 })], [far], 1e-12);
  const larger = placed(key, 2).map((value, i) => (i < 4 ? value * 1.5 : value));
  assertNear(unturned(larger, rotary, 2), key, 1e-12);
});
