/** Shades behind words: as strong as they can be while the words stay readable. */

import { channels, luminance, withAlpha } from "./colors.js";
import { shadeOf, signColor } from "./sign_colors.js";

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

/**
 * The colour behind a token that is looked at with this weight.
 *
 * @param {string} color
 * @param {number} weight
 * @param {Theme} theme
 */
export function weightShade(color, weight, theme) {
  return withAlpha(color, (1 - (1 - Math.min(weight, 1)) ** 3) * strongest(color, theme));
}

/**
 * The colour behind a word or a number that has this value: as strong above zero as below it.
 *
 * @param {number} value
 * @param {number} scale  the number that has the strongest colour
 * @param {Theme} theme
 */
export function signedShade(value, scale, theme) {
  const most = Math.min(strongest(signColor(1, theme), theme), strongest(signColor(-1, theme), theme));
  return shadeOf(value, scale, theme, most);
}
