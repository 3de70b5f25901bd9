/** Shades behind words: as strong as they can be while the words stay readable. */

import { channels } from "./colors.js";

/**
 * @typedef {"light" | "dark"} Theme
 *
 * Paper and ink of theme.css, and the least contrast between a word and its shade (WCAG AA).
 *
 * @type {Record<Theme, {paper: string, ink: string}>}
 */
const SHEETS = { light: { paper: "#ffffff", ink: "#1d1d21" }, dark: { paper: "#151619", ink: "#ebebe8" } };
const CONTRAST = 4.5;
const MOST = 0.7;

/** @type {Map<string, number>} */
const KNOWN = new Map();

/**
 * The opacity of the strongest shade of a colour.
 *
 * @param {string} color  #rrggbb
 * @param {Theme} theme
 */
export function strongest(color, theme) {
  const name = color + theme;
  let alpha = KNOWN.get(name) ?? MOST;
  while (contrast(color, alpha, theme) < CONTRAST) alpha -= 0.02;
  KNOWN.set(name, alpha);
  return alpha;
}

/**
 * @param {string} color
 * @param {number} alpha
 * @param {Theme} theme
 */
function contrast(color, alpha, theme) {
  const [paper, ink] = [SHEETS[theme].paper, SHEETS[theme].ink].map(channels);
  const mixed = channels(color).map((value, i) => value * alpha + paper[i] * (1 - alpha));
  const [bright, dim] = [luminance(ink), luminance(mixed)].sort((a, b) => b - a);
  return (bright + 0.05) / (dim + 0.05);
}

/** @param {number[]} color */
function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
