/**
 * Vectors as strips of cells, and the lines of one query, on canvases as large as the window.
 *
 * @typedef {object} Strip
 * @property {ArrayLike<number>} numbers
 * @property {number} left  CSS pixels
 * @property {number} width
 * @property {number} top
 * @property {number} height
 * @property {number} scale  the number with the strongest colour
 */

import { lineAlpha } from "../data/attention.js";
import { shadeIndex } from "../draw/neuron_colors.js";

const FAINTEST = 1 / 510;
const STRENGTH = 3;

/**
 * A canvas of this size, emptied, with a pen in CSS pixels.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function penOn(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [columns, rows] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, columns, rows);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/**
 * The edges of cells, on whole device pixels, so that no seam shows between them.
 *
 * @param {number} left
 * @param {number} width
 * @param {number} count
 */
export function edgesOf(left, width, count) {
  const ratio = devicePixelRatio || 1;
  return Float64Array.from({ length: count + 1 }, (_, i) => Math.round((left + (width * i) / count) * ratio) / ratio);
}

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

/**
 * @typedef {object} Fan  the lines from one token to others
 * @property {number} width  CSS pixels between the tokens
 * @property {number} from  the height of the token that looks
 * @property {Float64Array} middles  the heights of the others
 * @property {Float64Array} weights
 * @property {number} height  of the window
 */

/**
 * The lines that can be seen, the strongest last.
 *
 * @param {Fan} fan
 * @returns {{key: number, alpha: number, width: number}[]}
 */
export function fanLines({ weights }) {
  return Array.from(weights, (weight, key) => ({ key, alpha: lineAlpha(weight, STRENGTH), width: 1 + 2 * weight }))
    .filter(({ alpha }) => alpha >= FAINTEST)
    .sort((a, b) => a.alpha - b.alpha);
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Fan} fan
 * @param {string} color
 * @returns {number}  how many lines there are
 */
export function drawFan(pen, fan, color) {
  const { width, from, middles, height } = fan;
  const lines = fanLines(fan);
  pen.strokeStyle = color;
  for (const line of lines) {
    const to = middles[line.key];
    if (Math.max(from, to) < -4 || Math.min(from, to) > height + 4) continue;
    pen.globalAlpha = Math.min(1, line.alpha);
    pen.lineWidth = line.width;
    pen.beginPath();
    pen.moveTo(0, from);
    pen.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  return lines.length;
}
