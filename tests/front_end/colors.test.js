/** Colours can be told apart, and scales are in order, for every kind of sight. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { PALETTES, channels } from "../../viz/static/core/draw/colors.js";
import { SCALES } from "../../viz/static/views/map/plot.js";

// Machado, Oliveira, Fernandes 2009, table 1 at severity 1.0, on linear RGB.
const SIGHTS = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
// Ottosson 2020: OKLab, a space in which distance is difference to the eye.
const CONES = [
  [0.4122214708, 0.5363325363, 0.0514459929],
  [0.2119034982, 0.6806995451, 0.1073969566],
  [0.0883024619, 0.2817188376, 0.6299787005],
];
const OPPONENTS = [
  [0.2104542553, 0.793617785, -0.0040720468],
  [1.9779984951, -2.428592205, 0.4505937099],
  [0.0259040371, 0.7827717662, -0.808675766],
];
/** In OKLab, 0.02 is a difference that can just be seen. */
const APART = 0.08;

const times = (matrix, vector) => matrix.map((row) => row.reduce((sum, value, i) => sum + value * vector[i], 0));
const linear = (hex) => channels(hex).map((value) => (value / 255) ** 2.2);
const oklab = (color) => times(OPPONENTS, times(CONES, color).map(Math.cbrt));

for (const [theme, palette] of Object.entries(PALETTES)) {
  test(`the heads of the ${theme} theme can be told apart by the colour-blind`, () => {
    assert.equal(palette.length, 12);
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      const seen = palette.map((hex) => oklab(times(matrix, linear(hex)).map((value) => Math.min(Math.max(value, 0), 1))));
      const pairs = seen.flatMap((one, i) => seen.slice(i + 1).map((other) => Math.hypot(...one.map((value, c) => value - other[c]))));
      assert.ok(Math.min(...pairs) >= APART, `${sight}: ${Math.min(...pairs)}`);
    }
  });
}

for (const [theme, sign] of [["light", -1], ["dark", 1]]) {
  test(`the map's scale of the ${theme} theme is in order by brightness and by green alone`, () => {
    const colors = SCALES[theme].map(linear);
    const bright = colors.map(([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue);
    for (let i = 1; i < colors.length; i += 1) {
      assert.ok((bright[i] - bright[i - 1]) * sign > 0.003);
      // Green alone is what is left to a person who does not see red.
      assert.ok((colors[i][1] - colors[i - 1][1]) * sign > 0);
    }
  });
}
