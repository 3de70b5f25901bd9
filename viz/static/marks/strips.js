/** Vectors as strips of cells. */

import { penOf } from "../core/draw/canvas.js";
import { shadeIndex, shadeTable } from "../core/draw/colors.js";
import { element } from "../core/draw/dom.js";

/**
 * A strip: a canvas with a pixel for each number, which the style stretches.
 *
 * @param {ArrayLike<number>} numbers
 * @param {number} scale  the number with the strongest colour
 * @param {"light" | "dark"} theme
 * @param {string[]} [shades]  from -scale to scale
 */
export function stripOf(numbers, scale, theme, shades = shadeTable(theme)) {
  const canvas = element("canvas", { class: "strip", width: String(numbers.length), height: "1", "aria-hidden": "true" });
  const pen = penOf(canvas);
  for (let i = 0; i < numbers.length; i += 1) {
    pen.fillStyle = shades[shadeIndex(numbers[i], scale)];
    pen.fillRect(i, 0, 1, 1);
  }
  return canvas;
}

/** The dimension of a strip of `count` under a place of the window, or -1 beside it. @param {Element} strip @param {number} x @param {number} count */
export function dimensionAt(strip, x, count) {
  const { left, width } = strip.getBoundingClientRect();
  return x < left || x >= left + width ? -1 : Math.min(count - 1, Math.floor(((x - left) / width) * count));
}
