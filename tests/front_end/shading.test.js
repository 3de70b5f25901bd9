/** What the text view shades by: sums and means written out. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { received, relevanceOf, shadingOf } from "../../viz/static/core/data/shading.js";
import { assertNear, layerOf, tokensOf } from "./near.js";

const weight = (code) => (code / 255) ** 2;
const LAYER = layerOf([
  [[10, 20, 30], [40, 50, 60]],
  [[70, 80, 90], [100, 110, 120]],
]);
const ALL = { query: Uint8Array.of(1, 1), key: Uint8Array.of(1, 1, 1) };

test("attention received is the mean over heads and over those that look", () => {
  const mean = (codes) => codes.reduce((sum, code) => sum + weight(code), 0) / codes.length;
  assertNear(received(LAYER, [0, 1], ALL), [mean([10, 40, 70, 100]), mean([20, 50, 80, 110]), mean([30, 60, 90, 120])]);
  assertNear(received(LAYER, [1], ALL), [mean([70, 100]), mean([80, 110]), mean([90, 120])]);
  const some = { query: Uint8Array.of(0, 1), key: Uint8Array.of(1, 0, 1) };
  assertNear(received(LAYER, [0], some), [weight(40), 0, weight(60)]);
});

test("the strongest shade is an ordinary token's, of either sign", () => {
  const { scale, above } = shadingOf(Float64Array.of(0.9, -0.4, 0.3), [1, 0, 0]);
  assert.deepEqual([scale, above], [0.4, true]);
  const only = shadingOf(Float64Array.of(0.9, 0.1), [1, 1]);
  assert.deepEqual([only.scale, only.above], [0.9, false]);
});

test("relevance is a number a token, or a row of them for each token that can be chosen", () => {
  const about = (relevance) => ({ tokens: tokensOf("a", "b"), header: { relevance } });
  const one = { name: "r", of: null, values: [1, -2], rows: null };
  assert.deepEqual(relevanceOf(about(one), 1), { name: "r", values: [1, -2], of: null, choice: false });
  const table = { name: "r", of: 1, values: null, rows: [[1, 2], [3, 4]] };
  assert.deepEqual(relevanceOf(about(table)), { name: "r", values: [3, 4], of: 1, choice: true });
  assert.deepEqual(relevanceOf(about(table), 0), { name: "r", values: [1, 2], of: 0, choice: true });
  assert.equal(relevanceOf({ tokens: tokensOf("a"), header: {} }), null);
});
