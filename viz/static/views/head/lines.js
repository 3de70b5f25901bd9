/**
 * Attention as lines between two columns.
 *
 * @typedef {object} Geometry  in CSS pixels from the top of the tokens
 * @property {number} width  between the columns
 * @property {number} height
 * @property {Record<import("../../core/data/attention.js").Side, Float64Array>} middles  of each token, its height
 * @property {number} row  the height of a token
 *
 * @typedef {object} Look
 * @property {number[]} numbers  the number in the model of each place in the head axis
 * @property {"light" | "dark"} theme
 * @property {number} strength
 *
 * @typedef {object} Drawing
 * @property {import("../../core/data/example.js").Layer} layer
 * @property {Uint32Array} places  the lines, the front one first, from `gatherLines`
 * @property {number[]} heads  the places in the head axis that are on
 * @property {number} bright  how many of them are not faded
 * @property {Geometry} geometry
 * @property {Look} look
 */

import { lineAlpha, weightOf } from "../../core/data/attention.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { riseAt } from "../../core/draw/raster.js";

/** CSS pixels between the lines of neighbouring heads, and the part of a row they fill at most. */
const MOST_APART = 3;
const SPREAD = 0.6;
/** So many are drawn at full resolution. */
export const SHARP = 1000;
/** How much is left of a faded line. */
const FADED = 0.2;
/** Pixels between a line and a click that still mean the line. */
const REACH = 5;

/**
 * How far the lines of each head stand off the middle of a token: side by side, so that heads
 * with the same weight can be told apart.
 *
 * @param {Drawing} drawing
 * @returns {Float64Array}  CSS pixels, by place in the head axis
 */
export function lineOffsets({ heads, geometry, look }) {
  const step = Math.min(MOST_APART, (geometry.row * SPREAD) / heads.length);
  const apart = new Float64Array(look.numbers.length);
  heads.forEach((head, i) => {
    apart[head] = (i - (heads.length - 1) / 2) * step;
  });
  return apart;
}

/** @param {number} weight */
export function lineWidth(weight) {
  return 1 + 2 * weight;
}

/**
 * A function that adds the i-th line to a picture of the strip that begins at `top`.
 *
 * @param {Drawing} drawing
 * @param {import("../../core/draw/raster.js").Raster} raster
 * @param {number} top  CSS pixels
 * @param {number} scale  device pixels in a CSS pixel
 * @returns {(i: number) => void}
 */
export function lineAdder(drawing, raster, top, scale) {
  const { layer, places, bright, geometry, look } = drawing;
  const { codes, nQueries, nKeys } = layer;
  const weights = Float64Array.from({ length: 256 }, (_, code) => weightOf(code));
  const alphas = weights.map((weight) => lineAlpha(weight, look.strength));
  const widths = weights.map((weight) => lineWidth(weight) * scale);
  const colors = look.numbers.map((number) => channels(headColor(number, look.theme)));
  const scaled = (/** @type {number} */ middle) => (middle - top) * scale;
  const [queries, keys] = [geometry.middles.query.map(scaled), geometry.middles.key.map(scaled)];
  const apart = lineOffsets(drawing).map((offset) => offset * scale);
  return (i) => {
    const place = places[i];
    const code = codes[place];
    const row = Math.floor(place / nKeys);
    const head = Math.floor(row / nQueries);
    const from = queries[row % nQueries] + apart[head];
    const to = keys[place % nKeys] + apart[head];
    const alpha = i < bright ? alphas[code] : alphas[code] * FADED;
    if (i >= SHARP) raster.addFaint(from, to, widths[code], colors[head], alpha);
    else raster.add(from, to, widths[code], colors[head], alpha);
  };
}

/**
 * The line at a point: the front one of those within reach, or -1.
 *
 * @param {Drawing} drawing
 * @param {number} x
 * @param {number} y
 */
export function lineAt(drawing, x, y) {
  const { layer, places, geometry } = drawing;
  if (x < 0 || x > geometry.width) return -1;
  const { nQueries, nKeys } = layer;
  const rise = riseAt(x / geometry.width);
  const apart = lineOffsets(drawing);
  for (const place of places) {
    const row = Math.floor(place / nKeys);
    const from = geometry.middles.query[row % nQueries];
    const to = geometry.middles.key[place % nKeys];
    const height = from + (to - from) * rise + apart[Math.floor(row / nQueries)];
    if (Math.abs(height - y) <= REACH) return place;
  }
  return -1;
}
