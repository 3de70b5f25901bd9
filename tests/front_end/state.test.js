/** What an address says is what the page shows, and the other way round. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { fittedState, fromHash, initialState, toHash } from "../../viz/static/core/state/state.js";

const LIMITS = {
  views: ["head", "model", "map"],
  view: "head",
  examples: 3,
  layers: [2, 5, 7],
  heads: [0, 1, 4, 11],
  first: [0, 1, 4, 11],
  size: 6,
  keys: 9,
  minimum: 0,
  pair: true,
};
const CHANGED = {
  view: "map",
  example: 2,
  beside: 1,
  layer: 7,
  level: "products",
  heads: [1, 11],
  query: 5,
  key: 8,
  anchor: "key",
  filter: "ab",
  minimum: 7.5,
  special: false,
  theme: "dark",
  number: "mlp_post",
  dimension: 17,
  split: "features",
  zoom: 3,
};

test("a page as it begins has an empty address", () => {
  assert.equal(toHash(initialState(LIMITS), LIMITS), "");
  assert.deepEqual(fromHash("", LIMITS), initialState(LIMITS));
});

test("every part of the state comes back from the address", () => {
  const state = { ...initialState(LIMITS), ...CHANGED };
  assert.deepEqual(Object.keys(CHANGED).sort(), Object.keys(initialState(LIMITS)).sort());
  assert.deepEqual(fromHash(toHash(state, LIMITS), LIMITS), state);
});

test("an address that asks for what is not here is passed over", () => {
  const wrong = [
    "view=neuron", "view=__proto__", "example=3", "example=-1", "layer=3", "layer=2.0", "heads=2.3", "heads=",
    "query=6", "key=9", "query=1e0", "query=<script>", "filter=cc", "min=4", "min=", "theme=blue",
    "number=<b>", "dim=-1", "dim=1e3", "split=all", "zoom=7", "zoom=-1", "level=<b>", "nonsense=1", "%E0%A4%A", "=", "&&&",
  ];

  for (const hash of wrong) assert.deepEqual(fromHash(hash, LIMITS), initialState(LIMITS), hash);
});

test("a text beside takes over what it has of the state", () => {
  const small = { ...LIMITS, views: ["head"], layers: [0, 6], heads: [0, 4], size: 3, keys: 3, pair: false };
  const state = { ...initialState(LIMITS), view: "map", layer: 7, heads: [4, 11], query: 5, filter: "ab", theme: "dark" };
  const fitted = fittedState(state, LIMITS, small);
  assert.deepEqual([fitted.view, fitted.layer, fitted.heads], ["head", 6, [4]]);
  assert.deepEqual([fitted.query, fitted.filter, fitted.theme], [null, "all", "dark"]);
  const all = fittedState(initialState(LIMITS), LIMITS, small);
  assert.deepEqual(all.heads, [0, 4]);
});
