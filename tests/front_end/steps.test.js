/** The steps of one weight; expected numbers are short enough to check by hand. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { dimensions, mixtureOf, pairOf, usualQuery, whyAbsent } from "../../viz/static/core/data/softmax.js";
import { assertNear, tokensOf } from "./near.js";

const VECTORS = {
  query: Float32Array.of(1, 2, 0, -1, 3, 0.5),
  key: Float32Array.of(1, 0, 2, 1, -1, 4),
  value: Float32Array.of(1, 10, 2, 20, 3, 30),
  nQueries: 3,
  nKeys: 3,
  width: 2,
  scale: 0.5,
  exact: true,
};

test("what a head hands on is the weighted sum of values", () => {
  assertNear(mixtureOf(VECTORS.value, Float64Array.of(0.5, 0.25, 0.25), 2), [1.75, 17.5]);
});

test("dimensions are in their order, or by size with ties in order", () => {
  assert.deepEqual(dimensions([1, -5, 5, 0.1], "dimension"), [0, 1, 2, 3]);
  assert.deepEqual(dimensions([1, -5, 5, 0.1], "size"), [1, 2, 0, 3]);
});

test("the usual query is the last word", () => {
  assert.equal(usualQuery(tokensOf("[CLS]", "cat", "sat", ".", "[SEP]")), 2);
  assert.equal(usualQuery(tokensOf("[CLS]", "!", "?", "[SEP]")), 2);
  assert.equal(usualQuery(tokensOf("[CLS]", "[SEP]")), 1);
});

test("without a choice the last word and its strongest key are shown", () => {
  const example = { tokens: tokensOf("a", "b", "!"), causal: false };
  const { row, key } = pairOf(example, VECTORS, { query: null, key: null });
  assert.deepEqual([row.query, key], [1, 0]);
  assert.equal(pairOf(example, VECTORS, { query: 0, key: 1 }).key, 1);
  // Chosen in a longer text beside this one.
  const other = pairOf(example, VECTORS, { query: 9, key: 9 });
  assert.deepEqual([other.row.query, other.key], [1, 0]);
});

test("a page without a head's numbers says whose it has", () => {
  const arrays = [{ quantity: "query", layer: 1, head: null }, { quantity: "query", layer: 2, head: 3 }];
  const said = whyAbsent({ header: { arrays } }, 0, 4);
  assert.match(said, /layer 0, head 4/);
  assert.match(said, /layer 1; layer 2, head 3/);
});
