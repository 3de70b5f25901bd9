/** What the codes mean, which tokens take part, and which lines are drawn. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  boundsOf, firstCode, gatherLines, largest, lineAlpha, meanWeights, shownTokens, usualMinimum, weightOf,
} from "../../viz/static/core/data/attention.js";
import { assertNear, layerOf, tokensOf } from "./near.js";

const LAYER = layerOf([
  [[255, 0, 10], [128, 200, 30], [7, 7, 240]],
  [[90, 180, 0], [0, 255, 1], [60, 61, 62]],
]);
const ALL = { query: Uint8Array.of(1, 1, 1), key: Uint8Array.of(1, 1, 1) };

/** The same lines by their definition: filter, order by code, ties in reading order. */
function linesByDefinition(heads, shown, least, focus, top) {
  const cells = [];
  for (const head of heads) {
    for (let query = 0; query < 3; query += 1) {
      const row = [0, 1, 2]
        .map((key) => ({ place: (head * 3 + query) * 3 + key, query, key }))
        .filter(({ place, key }) => shown.key[key] && LAYER.codes[place] >= least)
        .sort((a, b) => LAYER.codes[b.place] - LAYER.codes[a.place] || a.key - b.key);
      if (shown.query[query]) cells.push(...(top ? row.slice(0, top) : row));
    }
  }
  return cells
    .filter((cell) => !focus || cell[focus.side] === focus.index)
    .sort((a, b) => LAYER.codes[b.place] - LAYER.codes[a.place] || a.place - b.place)
    .map(({ place }) => place);
}

test("a code is 255 times the root of the weight, and its bounds hold every weight that has it", () => {
  for (const weight of [0, 1e-5, 0.003, 0.25, 0.5, 0.999, 1]) {
    const code = Math.round(255 * Math.sqrt(weight));
    const [low, high] = boundsOf(code);
    assert.ok(low <= weight && weight <= high, String(weight));
    assert.ok(Math.abs(weightOf(code) - weight) <= 4e-3, String(weight));
  }
  assert.deepEqual(boundsOf(255)[1], 1);
  assert.equal(boundsOf(0)[0], 0);
});

test("sentence filters choose the side that looks and the side that is looked at", () => {
  const tokens = tokensOf("[CLS]", "a", "[SEP]", "|", "b", "[SEP]");
  const sides = (filter, special) => {
    const { query, key } = shownTokens(tokens, filter, special);
    return [query.join(""), key.join("")];
  };
  assert.deepEqual(sides("all", true), ["11111", "11111"]);
  assert.deepEqual(sides("aa", true), ["11100", "11100"]);
  assert.deepEqual(sides("ab", true), ["11100", "00011"]);
  assert.deepEqual(sides("ba", true), ["00011", "11100"]);
  assert.deepEqual(sides("bb", false), ["00010", "00010"]);
  assert.deepEqual(sides("all", false), ["01010", "01010"]);
});

test("lines are the cells that the definition gives, whatever is asked for", () => {
  const some = { query: Uint8Array.of(1, 0, 1), key: Uint8Array.of(0, 1, 1) };
  for (const heads of [[0], [1], [0, 1]]) {
    for (const shown of [ALL, some]) {
      for (const least of [1, 8, 100, 256]) {
        for (const focus of [null, { side: "query", index: 2 }, { side: "key", index: 1 }]) {
          for (const top of [0, 1, 2]) {
            const found = Array.from(gatherLines(LAYER, heads, shown, least, focus, top));
            assert.deepEqual(found, linesByDefinition(heads, shown, least, focus, top));
          }
        }
      }
    }
  }
});

test("a line too faint for a screen of 8 bits is left out, and no other", () => {
  for (const strength of [1, 2, 3]) {
    const code = firstCode(0, strength);
    assert.ok(lineAlpha(weightOf(code), strength) >= 1 / 510);
    assert.ok(lineAlpha(weightOf(code - 1), strength) < 1 / 510);
  }
});

test("means over heads are of weights, and nothing where a token takes no part", () => {
  const weight = (code) => (code / 255) ** 2;
  assertNear(meanWeights(LAYER, [0, 1], ALL, { side: "query", index: 1 }), [
    weight(128) / 2, (weight(200) + weight(255)) / 2, (weight(30) + weight(1)) / 2,
  ]);
  assertNear(meanWeights(LAYER, [1], ALL, { side: "key", index: 1 }), [weight(180), 1, weight(61)]);
  const first = { query: ALL.query, key: Uint8Array.of(1, 0, 0) };
  assertNear(meanWeights(LAYER, [1], first, { side: "query", index: 0 }), [weight(90), 0, 0]);
  assertNear(meanWeights(LAYER, [1], first, { side: "key", index: 1 }), [0, 0, 0]);
});

test("the largest come first, ties in reading order, none below the least", () => {
  assert.deepEqual(largest(Float64Array.of(0.2, 0.5, 0.2, 0.01, 0.9), 4, 0.1), [4, 1, 0, 2]);
  assert.deepEqual(largest(Float64Array.of(0.2, 0.5, 0.2), 2, 0.1), [1, 0]);
});

test("a sentence begins with no threshold, a long text with one above its even share", () => {
  assert.equal(usualMinimum(16), 0);
  const sizes = [100, 200, 512, 1000, 100000];
  for (const size of sizes) assert.ok(usualMinimum(size) / 100 > 1 / size, String(size));
  const minima = [8, 64, ...sizes].map(usualMinimum);
  assert.deepEqual(minima, minima.toSorted((a, b) => a - b));
});
