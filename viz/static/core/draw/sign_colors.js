/**
 * Signed numbers as colours: blue above zero, orange below, the stronger the farther from it.
 *
 * @typedef {"light" | "dark"} Theme
 */

import { withAlpha } from "./colors.js";

/** @type {Record<Theme, {above: string, below: string}>} */
const SIGNS = {
  light: { above: "#17639e", below: "#c9540a" },
  dark: { above: "#58a8ff", below: "#f28a30" },
};
/** The part of all numbers that a scale covers; the few beyond it have the strongest colour. */
const COVERED = 0.995;
/** How many numbers are enough to know it. */
const SAMPLE = 20000;
const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/**
 * @param {number} value
 * @param {Theme} theme
 */
export function signColor(value, theme) {
  return value < 0 ? SIGNS[theme].below : SIGNS[theme].above;
}

/**
 * @param {number} value
 * @param {number} scale  the number that has the strongest colour
 * @param {Theme} theme
 * @param {number} [strongest]  its opacity
 */
export function shadeOf(value, scale, theme, strongest = 1) {
  return withAlpha(signColor(value, theme), Math.min(Math.abs(value) / scale, 1) * strongest);
}

/**
 * The colours from -scale to scale as a CSS image.
 *
 * @param {Theme} theme
 */
export function rampOf(theme) {
  const { above, below } = SIGNS[theme];
  const middle = `${withAlpha(below, 0)} 50%, ${withAlpha(above, 0)} 50%`;
  return `linear-gradient(90deg, ${below}, ${middle}, ${above})`;
}

/** @type {Map<Theme, string[]>} */
const tables = new Map();

/**
 * All shades of a theme, made once: a canvas is slow where each cell makes its own.
 *
 * @param {Theme} theme
 * @returns {string[]}  from -255 (at 0) over 0 (at 255) to 255 (at 510)
 */
export function shadeTable(theme) {
  const table = tables.get(theme) ?? Array.from({ length: 511 }, (_, i) => shadeOf(i - 255, 255, theme));
  tables.set(theme, table);
  return table;
}

/**
 * @param {number} value
 * @param {number} scale
 */
export function shadeIndex(value, scale) {
  return 255 + Math.round(255 * Math.max(-1, Math.min(1, value / scale)));
}

/**
 * A round number that nearly all of these are below, in size.
 *
 * @param {ArrayLike<number>[]} arrays
 */
export function scaleFor(...arrays) {
  const sampled = arrays.flatMap((numbers) => {
    const step = Math.max(1, Math.floor((numbers.length * arrays.length) / SAMPLE));
    return Array.from({ length: Math.floor(numbers.length / step) }, (_, i) => Math.abs(numbers[i * step]));
  });
  // An array of numbers sorts them as numbers, and fast.
  const sizes = Float64Array.from(sampled).sort();
  return roundUp(sizes[Math.floor((sizes.length - 1) * COVERED)] ?? 0);
}

/** @param {number} size */
function roundUp(size) {
  if (!(size > 0) || !Number.isFinite(size)) return 1;
  const power = 10 ** Math.floor(Math.log10(size));
  const digit = ROUND.find((step) => step * power >= size * (1 - 1e-9)) ?? 10;
  return digit * power;
}
