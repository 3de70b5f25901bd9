/** A token's weights as shaded backgrounds opposite: one band a head, as dark as the weight. */

import { codeAt, firstCode, lineAlpha, opposite, weightOf } from "./attention.js";
import { headColor, withAlpha } from "./colors.js";

/** The darkest shade; text on it stays readable. */
const DARKEST = 0.6;

/**
 * @param {Record<import("./attention.js").Side, HTMLElement[]>} items
 * @param {import("./head.js").Scene} scene
 * @param {import("./attention.js").Focus | null} focus
 */
export function shadeTokens(items, scene, focus) {
  for (const item of [...items.query, ...items.key]) item.style.removeProperty("--bands");
  if (!focus || !scene.heads.length || !scene.shown[focus.side][focus.index]) return;
  const side = opposite(focus.side);
  items[side].forEach((item, other) => {
    const bands = scene.shown[side][other] ? bandsOf(scene, focus, other) : "";
    if (bands) item.style.setProperty("--bands", bands);
  });
}

/**
 * The bands of one token as a CSS image, or "" when none of them can be seen.
 *
 * @param {import("./head.js").Scene} scene
 * @param {import("./attention.js").Focus} focus
 * @param {number} other
 */
function bandsOf({ layer, heads, look }, focus, other) {
  const codes = heads.map((head) => codeAt(layer, head, focus, other));
  const least = firstCode(0, look.strength);
  if (codes.every((code) => code < least)) return "";
  const stops = codes.map((code, i) => {
    const alpha = lineAlpha(weightOf(code), look.strength) * DARKEST;
    const color = withAlpha(headColor(look.numbers[heads[i]], look.theme), alpha);
    return `${color} ${(100 * i) / heads.length}% ${(100 * (i + 1)) / heads.length}%`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
