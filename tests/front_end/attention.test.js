/** Which lines of a text are drawn, and which are the strongest. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { codeOfStrongest, gatherLines } from "../../viz/static/core/data/attention.js";
import { layerOf } from "./near.js";

const LAYER = layerOf([
  [[255, 0, 10], [128, 200, 30], [7, 7, 240]],
  [[90, 180, 0], [0, 255, 1], [60, 61, 62]],
]);
const ALL = { query: Uint8Array.of(1, 1, 1), key: Uint8Array.of(1, 1, 1) };

/** The same lines by their definition: filter, order by code, ties in reading order. */
function linesByDefinition(heads, shown, least, focus) {
  const cells = [];
  for (const head of heads) {
    for (let query = 0; query < 3; query += 1) {
      const row = [0, 1, 2]
        .map((key) => ({ place: (head * 3 + query) * 3 + key, query, key }))
        .filter(({ place, key }) => shown.key[key] && LAYER.codes[place] >= least)
        .sort((a, b) => LAYER.codes[b.place] - LAYER.codes[a.place] || a.key - b.key);
      if (shown.query[query]) cells.push(...row);
    }
  }
  return cells
    .filter((cell) => !focus || cell[focus.side] === focus.index)
    .sort((a, b) => LAYER.codes[b.place] - LAYER.codes[a.place] || a.place - b.place)
    .map(({ place }) => place);
}

test("lines are the cells that the definition gives, whatever is asked for", () => {
  const some = { query: Uint8Array.of(1, 0, 1), key: Uint8Array.of(0, 1, 1) };
  for (const heads of [[0], [1], [0, 1]]) {
    for (const shown of [ALL, some]) {
      for (const least of [1, 8, 100, 256]) {
        for (const focus of [null, { side: "query", index: 2 }, { side: "key", index: 1 }]) {
          const found = Array.from(gatherLines(LAYER, heads, shown, least, focus));
          assert.deepEqual(found, linesByDefinition(heads, shown, least, focus));
        }
      }
    }
  }
});

const all = (n) => ({ query: new Uint8Array(n).fill(1), key: new Uint8Array(n).fill(1) });

test("as many lines as are wanted, or a few more that are as strong as the last of them", () => {
  const layer = layerOf([[[9, 50, 3], [40, 40, 2], [0, 8, 60]]]);
  assert.equal(codeOfStrongest(layer, [0], all(3), 1, null), 60);
  assert.equal(codeOfStrongest(layer, [0], all(3), 3, null), 40);
  assert.equal(codeOfStrongest(layer, [0], all(3), 20, null), 2);
  assert.equal(codeOfStrongest(layer, [0], all(3), 2, { side: "query", index: 0 }), 9);
});
