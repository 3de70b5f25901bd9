/** Heads whose statistics are known beforehand, and the formulas written out for one that is not. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { STATISTICS, aboutTokens, measureHead, written } from "../../viz/static/core/data/statistics.js";
import { assertNear, tokensOf } from "./near.js";

/** @returns {Record<string, number>} */
function measured(rows, tokens, causal = false, keyTokens = tokens) {
  const numbers = measureHead(Float32Array.from(rows.flat()), aboutTokens({ tokens, keyTokens, causal }));
  return Object.fromEntries(STATISTICS.map(({ id }, i) => [id, numbers[i]]));
}

test("a causal head that shares evenly does so among what it may see", () => {
  const tokens = tokensOf("a", "b", "a", "d");
  const rows = [0, 1, 2, 3].map((query) => [0, 1, 2, 3].map((key) => (key <= query ? 1 / (query + 1) : 0)));
  const found = measured(rows, tokens, true);
  assertNear([found.broad, found.previous], [1, (1 / 2 + 1 / 3 + 1 / 4) / 3], 1e-6);
  // An equal token elsewhere counts as the same one.
  assertNear([found.same], [(1 + 1 / 2 + 2 / 3 + 1 / 4) / 4], 1e-6);
  assertNear([found.entropy], [(Math.log(2) + Math.log(3) + Math.log(4)) / 4], 1e-6);
  assert.ok(Number.isNaN(found.next) && Number.isNaN(found.delimiter));
});

test("between two texts there is no token before, after, nor a distance", () => {
  const rows = [[0.5, 0.25, 0.25], [0, 1, 0]];
  const found = measured(rows, tokensOf("le", "chat"), false, tokensOf("the", "cat", "[SEP]"));
  assert.ok([found.previous, found.next, found.distance].every(Number.isNaN));
  assertNear([found.first, found.delimiter, found.largest], [0.25, 0.125, 0.75]);
  assertNear([found.entropy], [(0.5 * Math.log(2) + 0.5 * Math.log(4)) / 2]);
});

test("statistics are written in their units", () => {
  const unit = (id) => STATISTICS.find((statistic) => statistic.id === id);
  assert.equal(written(unit("previous"), 0.5), "50\u202f%");
  assert.equal(written(unit("previous"), 0.034), "3.4\u202f%");
  assert.equal(written(unit("entropy"), 1.234), "1.23\u202fnats");
  assert.equal(written(unit("distance"), 12.6), "13");
  assert.equal(written(unit("next"), NaN), "–");
});
