/** A token's weights as shaded backgrounds opposite: one band a head, as dark as the weight. */

import { codeAt, lineAlpha, opposite, weightOf } from "../../core/data/attention.js";
import { headColor, withAlpha } from "../../core/draw/colors.js";

/** The darkest shade; text on it stays readable. */
const DARKEST = 0.6;

/** Shades that nobody sees need not be there: a long text has thousands of them. */
const FAINTEST = 0.012;

/**
 * @param {import("./columns.js").Columns} columns
 * @param {import("./head.js").Scene} scene
 * @param {import("../../core/data/attention.js").Focus | null} focus
 */
export function shadeTokens(columns, scene, focus) {
  const shaded = focus && scene.shown[focus.side][focus.index] ? opposite(focus.side) : null;
  const band = focus && bandMaker(scene, focus);
  for (const side of /** @type {const} */ (["query", "key"])) {
    for (const [i, item] of columns[side].items) {
      item.style.setProperty("--bands", band && side === shaded && scene.shown[side][i] ? band(i) : "");
    }
  }
}

/**
 * Gives the bands of a token as a CSS image, or "" when none of them can be seen.
 *
 * @param {import("./head.js").Scene} scene
 * @param {import("../../core/data/attention.js").Focus} focus
 * @returns {(other: number) => string}
 */
function bandMaker({ layer, heads, look }, focus) {
  const alphas = Array.from({ length: 256 }, (_, code) => lineAlpha(weightOf(code), look.strength) * DARKEST);
  const stop = (/** @type {number} */ code, /** @type {number} */ i) => {
    const color = withAlpha(headColor(look.numbers[heads[i]], look.theme), alphas[code]);
    return `${color} ${(100 * i) / heads.length}% ${(100 * (i + 1)) / heads.length}%`;
  };
  return (other) => {
    const codes = heads.map((head) => codeAt(layer, head, focus, other));
    if (codes.every((code) => alphas[code] < FAINTEST)) return "";
    return `linear-gradient(90deg, ${codes.map(stop).join(", ")})`;
  };
}
