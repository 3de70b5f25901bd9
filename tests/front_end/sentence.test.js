/** The sentence of a page: heads and tokens whose answer is known. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { shownTokens } from "../../viz/static/core/data/attention.js";
import { sentenceOf } from "../../viz/static/core/data/sentence.js";
import { tokensOf } from "./near.js";

const WORDS = ["[CLS]", "the", "horse", "ran", "[SEP]"];
const N = WORDS.length;

/** Codes of heads, each a function that gives a weight to a query and a key. */
function layerOf(...heads) {
  const cells = heads.flatMap((weight) => Array.from({ length: N * N }, (_, i) => weight(Math.floor(i / N), i % N)));
  return { number: 2, nHeads: heads.length, nQueries: N, nKeys: N, size: N, codes: Uint8Array.from(cells, (cell) => Math.round(255 * Math.sqrt(cell))) };
}

const previous = (share) => (query, key) => (key === Math.max(query - 1, 0) ? share : (1 - share) / (N - 1));
const even = () => 1 / N;

function said(layer, { heads = [0], query = null, key = null, special = true, words = WORDS } = {}) {
  const tokens = { ...tokensOf(...words), special: words.map((word) => Number(word.startsWith("["))) };
  const example = { tokens, keyTokens: tokens, causal: false };
  const shown = shownTokens(tokens, "all", special);
  return sentenceOf({ example, layer, numbers: [4, 7], heads, shown, query, key }).map((part) => (typeof part === "string" ? part : part.token)).join("");
}

test("a head is told of by where its tokens look", () => {
  assert.equal(said(layerOf(previous(0.92))), "Head 4 of layer 2: every token looks at the one before it, 92\u202f%.");
  const first = (query, key) => (key === 0 ? 0.6 : 0.1);
  assert.equal(said(layerOf(first)), "Head 4 of layer 2: every token looks at the first one, [CLS], 60\u202f%.");
  const parting = (query, key) => (key === N - 1 ? 0.8 : 0.05);
  assert.equal(said(layerOf(parting)), "Head 4 of layer 2: every token looks at [SEP], 80\u202f%.");
});

test("a head without such a place says how far its attention is spread", () => {
  assert.match(said(layerOf(even)), /^Head 4 of layer 2: its tokens look at many places; .* is 20\u202f% on average\.$/);
});

test("of several heads it names the clearest", () => {
  const layer = layerOf(even, previous(0.9));
  assert.equal(said(layer, { heads: [0, 1] }), "Head 7 of layer 2, the clearest of 2: every token looks at the one before it, 90\u202f%.");
  assert.equal(said(layer, { heads: [] }), "");
});
