/** Where a text is found, as a person who reads the sentence would say. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { matchesOf } from "../../viz/static/core/text/text.js";
import { tokensOf } from "./near.js";

const BERT = tokensOf("[CLS]", "Fresh", "straw", "##berries", ",", "fresh", "straw", "[SEP]");

function found(tokens, text) {
  const { starts, tokens: all } = matchesOf(tokens, text);
  return [starts, [...all].sort((a, b) => a - b)];
}

test("a word is found across its pieces", () => {
  assert.deepEqual(found(BERT, "strawberries"), [[2], [2, 3]]);
  assert.deepEqual(found(BERT, "wber"), [[2], [2, 3]]);
});

test("several words are found across tokens, blanks as they may be", () => {
  assert.deepEqual(found(BERT, " fresh   straw "), [[1, 5], [1, 2, 5, 6]]);
});

test("nothing is found for nothing, nor for what is not there", () => {
  for (const text of ["", "  ", "turtle"]) assert.deepEqual(found(BERT, text), [[], []]);
});

test("a search is text: signs of a pattern stand for themselves", () => {
  assert.deepEqual(found(tokensOf("a.c", "abc"), "a.c"), [[0], [0]]);
  assert.deepEqual(found(tokensOf("(x", "y"), "(x"), [[0], [0]]);
});

test("tokens that bring their own space are joined as they stand", () => {
  const tokens = { ...tokensOf("The", " quick", "est", " fox") };
  assert.deepEqual(found(tokens, "quickest"), [[1], [1, 2]]);
  assert.deepEqual(found(tokens, "quickest fox"), [[1], [1, 2, 3]]);
  assert.deepEqual(found(tokens, "est fox"), [[2], [2, 3]]);
});
