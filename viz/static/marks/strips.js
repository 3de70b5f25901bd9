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
 *
 * @import { Pen } from "../core/export/figure.js"
 */

import { lineAlpha } from "../core/data/attention.js";
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

/** A line of attention fainter than this cannot be seen, and how strongly those of one token are drawn. */
const [FAINTEST, STRENGTH] = [1 / 510, 3];

/**
 * The lines of one token to others, the strongest last.
 *
 * @param {Pen} pen
 * @param {{width: number, height: number, from: number, middles: Float64Array, weights: Float64Array}} fan  CSS pixels
 *   between the tokens and of the window, the heights of the token that looks and of the others
 * @param {string} color
 * @returns {number}  how many can be seen
 */
export function drawFan(pen, { width, height, from, middles, weights }, color) {
  const lines = Array.from(weights, (weight, key) => ({ to: middles[key], alpha: lineAlpha(weight, STRENGTH), wide: 1 + 2 * weight }))
    .filter(({ alpha }) => alpha >= FAINTEST)
    .sort((a, b) => a.alpha - b.alpha);
  for (const { to, alpha, wide } of lines) {
    if (Math.max(from, to) < -4 || Math.min(from, to) > height + 4) continue;
    pen.curve(0, from, width, to, color, wide, Math.min(1, alpha));
  }
  return lines.length;
}
