/**
 * Vectors as strips of cells.
 *
 * @typedef {object} Strip
 * @property {ArrayLike<number>} numbers
 * @property {number} left  CSS pixels
 * @property {number} width
 * @property {number} top
 * @property {number} height
 * @property {number} scale  the number with the strongest colour
 */

import { edgesOf } from "../core/draw/canvas.js";
import { shadeIndex } from "../core/draw/colors.js";

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Strip} strip
 * @param {string[]} shades  of all colours, from `shadeTable`
 * @param {string} ground  the colour of a zero
 */
export function drawStrip(pen, { numbers, left, width, top, height, scale }, shades, ground) {
  const edges = edgesOf(left, width, numbers.length);
  pen.fillStyle = ground;
  pen.fillRect(edges[0], top, edges[numbers.length] - edges[0], height);
  for (let i = 0; i < numbers.length; i += 1) {
    const shade = shadeIndex(numbers[i], scale);
    if (shade === 255) continue;
    pen.fillStyle = shades[shade];
    pen.fillRect(edges[i], top, edges[i + 1] - edges[i], height);
  }
}

/**
 * A frame around one cell of a strip.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {Strip} strip
 * @param {number} dimension
 * @param {string} ink
 */
export function frameCell(pen, { numbers, left, width, top, height }, dimension, ink) {
  const edges = edgesOf(left, width, numbers.length);
  pen.strokeStyle = ink;
  pen.lineWidth = 1;
  pen.strokeRect(edges[dimension] - 0.5, top - 0.5, edges[dimension + 1] - edges[dimension] + 1, height + 1);
}

/**
 * The dimension at a place across a strip, or -1 beside it.
 *
 * @param {number} x
 * @param {number} left
 * @param {number} width
 * @param {number} count
 */
export function dimensionAt(x, left, width, count) {
  if (x < left || x >= left + width) return -1;
  return Math.min(count - 1, Math.floor(((x - left) / width) * count));
}
