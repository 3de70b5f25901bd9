/** The steps of one weight; expected numbers are short enough to check by hand. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  dimensions, mixtureOf, pairOf, productsOf, rowOf, sumsOf, usualQuery, whyAbsent,
} from "../../viz/static/core/data/softmax.js";
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

test("the products add up to the unscaled score", () => {
  assert.deepEqual(Array.from(productsOf(VECTORS, 2, 1)), [6, 0.5]);
  assertNear(rowOf(VECTORS, false, 2).scores, [1.5, 3.25, (-3 + 2) / 2]);
});

test("a row says its largest score, the exponentials, their sum and the weights", () => {
  const row = rowOf(VECTORS, false, 0);
  const scores = [0.5, 2, 3.5];
  const exps = scores.map((score) => Math.exp(score - 3.5));
  const sum = exps[0] + exps[1] + exps[2];
  assert.deepEqual([row.strongest, row.end], [2, 3]);
  assertNear(row.exps, exps);
  assertNear([row.denominator], [sum]);
  assertNear(row.weights, exps.map((value) => value / sum));
});

test("masked keys have a score and no weight", () => {
  const row = rowOf(VECTORS, true, 1);
  assert.deepEqual([row.end, row.strongest], [2, 0]);
  assertNear(row.scores, [0, -0.5, -2]);
  assertNear(row.weights, [1 / (1 + Math.exp(-0.5)), Math.exp(-0.5) / (1 + Math.exp(-0.5)), 0]);
  assert.equal(row.exps[2], 0);
});

test("what a head hands on is the weighted sum of values", () => {
  assertNear(mixtureOf(VECTORS.value, Float64Array.of(0.5, 0.25, 0.25), 2), [1.75, 17.5]);
});

test("sums are of all, of those above zero and of those below", () => {
  assert.deepEqual(sumsOf(Float64Array.of(3, -1, 0, 2, -0.5)), { all: 3.5, above: 5, below: -1.5, nAbove: 2, nBelow: 2 });
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
