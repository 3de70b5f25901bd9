/** Pictures to take away: two side by side as one, and how many pixels a large one has. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { sideBySide, toCsv } from "../../viz/static/core/export/figure.js";
import { scaleOf, toSvg } from "../../viz/static/core/export/pens.js";
import { assertNear } from "./near.js";

function figure(width, height, value) {
  const paint = (pen) => pen.rect(1, 0, 2, height, "#000000");
  return { name: "f", width, height, paper: "#ffffff", paint, columns: ["n"], rows: () => [[value]] };
}

test("two pictures side by side become one, and their tables one table", async () => {
  const both = sideBySide([figure(100, 20, 1), figure(50, 40, 0.1)], ["a", "b"]);
  assert.deepEqual([both.width, both.height], [182, 40]);
  const places = [...(await toSvg(both).text()).matchAll(/rect x="(\d+)" y="0" width="2" height="(\d+)"/g)].map((found) => found.slice(1));
  assert.deepEqual(places, [["1", "20"], ["133", "40"]]);
  assert.equal(toCsv(both).join(""), '"text","n"\r\n"a",1\r\n"b",0.1\r\n');
});

test("a large picture has fewer pixels rather than none", () => {
  const sizes = [[100, 100], [10000, 100], [20000, 100], [8000, 8400]];
  const scales = sizes.map(([width, height]) => scaleOf({ width, height }));
  assertNear(scales, [2, 1.6384, 0.8192, 0.99932], 1e-4);
});
