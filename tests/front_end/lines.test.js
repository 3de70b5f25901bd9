/** Where lines run. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { lineAt } from "../../viz/static/views/head/lines.js";
import { BEND } from "../../viz/static/core/export/figure.js";
import { layerOf } from "./near.js";

/** A point of the cubic Bézier curve (0, 0), (BEND, 0), (1 - BEND, 1), (1, 1), by de Casteljau. */
function bezier(t) {
  let points = [[0, 0], [BEND, 0], [1 - BEND, 1], [1, 1]];
  while (points.length > 1) {
    points = points.slice(1).map(([x, y], i) => [points[i][0] * (1 - t) + x * t, points[i][1] * (1 - t) + y * t]);
  }
  return points[0];
}

const GEOMETRY = {
  width: 100,
  height: 60,
  row: 20,
  middles: { query: Float64Array.of(10, 30, 50), key: Float64Array.of(10, 30, 50) },
};

function drawingOf(heads, places, on) {
  const look = { numbers: heads.map((_, i) => i), theme: "light", strength: 1 };
  return { layer: layerOf(heads), places: Uint32Array.from(places), heads: on, bright: places.length, geometry: GEOMETRY, look };
}

const EMPTY = [[0, 0, 0], [0, 0, 0], [0, 0, 0]];

test("a line is under each point of the Bézier curve it says it is", () => {
  const drawing = drawingOf([EMPTY], [2], [0]);
  for (let i = 0; i <= 20; i += 1) {
    const [x, y] = bezier(i / 20);
    for (const [off, found] of [[-4.9, 2], [4.9, 2], [-5.1, -1], [5.1, -1]]) assert.equal(lineAt(drawing, 100 * x, 10 + 40 * y + off), found);
  }
});

test("the line under the pointer is the front one within reach", () => {
  // From query 0 to key 2, then from query 2 to key 0; they cross in the middle.
  const drawing = drawingOf([EMPTY], [2, 6], [0]);
  assert.equal(lineAt(drawing, 50, 30), 2);
  assert.equal(lineAt(drawing, 2, 50), 6);
  assert.equal(lineAt(drawing, 98, 50), 2);
  assert.equal(lineAt(drawing, 2, 30), -1);
  assert.equal(lineAt(drawing, -1, 10), -1);
});
