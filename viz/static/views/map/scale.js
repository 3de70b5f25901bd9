/**
 * The colours of weights on a map: one hue after another, steadily darker on white and lighter
 * on black, so that they are in order for every kind of sight; tests measure that.
 */

import { channels } from "../../core/draw/colors.js";

/** @type {Record<string, string[]>} */
export const SCALES = {
  light: ["#f3f5f6", "#cfe0ea", "#93c3dc", "#4b9bc9", "#2070ae", "#12467f", "#081d45"],
  dark: ["#1d2127", "#1d3654", "#1f5a86", "#2f86ab", "#5bb3b8", "#a6dcb4", "#fbf8c8"],
};

/** Steps from the lightest to the darkest. */
const STEPS = 512;

/**
 * The pixels of weights from 0 to the largest; the one behind them is of what is not drawn.
 *
 * @param {"light" | "dark"} theme
 * @param {string} paper
 */
export function inksOfScale(theme, paper) {
  const inks = new Uint32Array(STEPS + 1);
  for (let i = 0; i < STEPS; i += 1) inks[i] = pixel(colorAt(theme, i / (STEPS - 1)));
  inks[STEPS] = pixel(channels(paper));
  return inks;
}

/**
 * @param {"light" | "dark"} theme
 * @param {number} part  of the way along the scale, from 0 to 1
 * @returns {number[]}
 */
function colorAt(theme, part) {
  const stops = SCALES[theme];
  const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const [from, to] = [channels(stops[i]), channels(stops[i + 1])];
  return from.map((value, c) => value + (to[c] - value) * (at - i));
}

/** @param {number[]} color */
function pixel([red, green, blue]) {
  const bytes = Uint8ClampedArray.of(red, green, blue, 255);
  return new Uint32Array(bytes.buffer)[0];
}

/**
 * The way along the scale that a weight is.
 *
 * @param {number} weight
 * @param {number} largest
 * @param {"root" | "linear"} scale
 */
export function partOf(weight, largest, scale) {
  if (largest <= 0) return 0;
  const part = Math.min(weight / largest, 1);
  return scale === "root" ? Math.sqrt(part) : part;
}

/**
 * @param {"light" | "dark"} theme
 * @returns {string}  a CSS image
 */
export function gradientOf(theme) {
  return `linear-gradient(90deg, ${SCALES[theme].join(", ")})`;
}
