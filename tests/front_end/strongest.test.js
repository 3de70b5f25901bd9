/** Which lines of a text are the strongest. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { codeOfStrongest } from "../../viz/static/core/data/attention.js";
import { layerOf } from "./near.js";

const all = (n) => ({ query: new Uint8Array(n).fill(1), key: new Uint8Array(n).fill(1) });

test("as many lines as are wanted, or a few more that are as strong as the last of them", () => {
  const layer = layerOf([[[9, 50, 3], [40, 40, 2], [0, 8, 60]]]);
  assert.equal(codeOfStrongest(layer, [0], all(3), 1, null), 60);
  assert.equal(codeOfStrongest(layer, [0], all(3), 3, null), 40);
  assert.equal(codeOfStrongest(layer, [0], all(3), 20, null), 2);
  assert.equal(codeOfStrongest(layer, [0], all(3), 2, { side: "query", index: 0 }), 9);
});

test("where all are alike there are none, and a few that stand out are not hidden by the rest", () => {
  const even = Array.from({ length: 20 }, () => Array.from({ length: 20 }, () => 12));
  assert.equal(codeOfStrongest(layerOf([even]), [0], all(20), 20, null), 256);
  even[3][4] = 30;
  assert.equal(codeOfStrongest(layerOf([even]), [0], all(20), 20, null), 30);
});
