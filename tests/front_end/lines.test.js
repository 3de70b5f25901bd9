/** Where lines run, and that what is painted is what was asked for. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { lineAt } from "../../viz/static/views/head/lines.js";
import { BEND, Raster, riseAt } from "../../viz/static/core/draw/raster.js";
import { assertNear, layerOf } from "./near.js";

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

test("a line is the Bézier curve it says it is", () => {
  for (let i = 0; i <= 20; i += 1) {
    const [x, y] = bezier(i / 20);
    assertNear([riseAt(x)], [y], 1e-5);
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

/** Red, green, blue and opacity of each pixel, 0 to 255. */
function pixelsOf(raster) {
  assert.ok(raster.draw());
  return new Uint8ClampedArray(raster.pixels.buffer);
}

/** All opacity together, of 1 for a full pixel. */
function inkOf(pixels) {
  return pixels.reduce((sum, value, i) => (i % 4 === 3 ? sum + value / 255 : sum), 0);
}

test("a line behind another shows through what the front one leaves", () => {
  const raster = new Raster();
  raster.start(4, 6);
  raster.add(3, 3, 4, [255, 0, 0], 0.6);
  raster.add(3, 3, 4, [0, 255, 0], 0.5);
  const place = (3 * 4 + 2) * 4;
  const wanted = [(0.6 / 0.8) * 255, (0.2 / 0.8) * 255, 0, 0.8 * 255];
  assertNear(Array.from(pixelsOf(raster).subarray(place, place + 4)), wanted, 0.51);
});

test("a steep line has the ink of its length: thickness over the cosine of its slope", () => {
  const [size, thickness, alpha] = [200, 2, 0.4];
  const raster = new Raster();
  raster.start(size, size);
  raster.add(20, 180, thickness, [0, 0, 0], alpha);
  let length = 0;
  for (let i = 0; i < 2000; i += 1) {
    const [[x, y], [toX, toY]] = [bezier(i / 2000), bezier((i + 1) / 2000)];
    length += Math.hypot((toX - x) * size, (toY - y) * 160);
  }
  const ink = inkOf(pixelsOf(raster));
  assert.ok(Math.abs(ink / (length * thickness * alpha) - 1) < 0.02, `${ink} of ${length * thickness * alpha}`);
});

test("a strip of a tall picture has the same pixels as the picture there", () => {
  const lines = [[-40, 90, 3], [150, 10, 1.5], [60, 64, 2], [300, -100, 1], [-5, -9, 2]];
  const whole = new Raster();
  whole.start(50, 200);
  const strip = new Raster();
  strip.start(50, 40);
  for (const [from, to, thickness] of lines) {
    whole.add(from, to, thickness, [9, 99, 199], 0.7);
    strip.add(from - 60, to - 60, thickness, [9, 99, 199], 0.7);
  }
  assertNear(pixelsOf(strip), Array.from(pixelsOf(whole).slice(60 * 50 * 4, 100 * 50 * 4)), 1);
});

test("faint lines at half the size are as much ink, behind those that are there", () => {
  const [fine, coarse] = [new Raster(), new Raster()];
  for (const [raster, faint] of [[fine, (...line) => fine.add(...line)], [coarse, (...line) => coarse.addFaint(...line)]]) {
    raster.start(101, 61);
    raster.add(20, 20, 4, [255, 0, 0], 1);
    for (let from = 1; from < 60; from += 2) faint(from, 60 - from, 1, [0, 0, 255], 0.05);
  }
  const [one, other] = [pixelsOf(fine), pixelsOf(coarse)];
  assert.ok(Math.abs(inkOf(other) / inkOf(one) - 1) < 0.03, `${inkOf(one)} ${inkOf(other)}`);
  const middle = (20 * 101 + 50) * 4;
  assert.deepEqual(Array.from(other.subarray(middle, middle + 4)), [255, 0, 0, 255]);
});
