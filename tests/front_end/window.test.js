/** The part of a map that is shown. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { holding, readWindow, zoomed } from "../../viz/static/core/state/window.js";
import { assertNear } from "./near.js";

const SIZES = { nQueries: 40, nKeys: 100 };

test("zooming out ends at the whole map, zooming in at four tokens a side", () => {
  assert.deepEqual(zoomed([10, 30, 20, 70], 1000, 15, 40, SIZES), [0, 40, 0, 100]);
  const [top, bottom, left, right] = zoomed([10, 30, 20, 70], 1e-6, 15, 40, SIZES);
  assertNear([bottom - top, right - left], [4, 4], 0.011);
});

test("a cell is brought in by the shortest way, and one that is in moves nothing", () => {
  const window = [10, 20, 10, 20];
  assert.equal(holding(window, 12, 19, SIZES), window);
  assert.deepEqual(holding(window, 25, 3, SIZES), [16, 26, 3, 13]);
});

test("an address that names no window of this map is passed over", () => {
  const wrong = ["", "1-2-3", "0-41-0-100", "0-40-0-101", "5-5-0-9", "9-3-0-9", "-1-4-0-9", "a-b-c-d", "0-4-0-1e1"];
  for (const written of wrong) assert.equal(readWindow(written, SIZES), undefined, written);
});
