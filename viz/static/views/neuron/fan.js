/**
 * The lines of one query.
 *
 * @typedef {object} Fan  the lines from one token to others
 * @property {number} width  CSS pixels between the tokens
 * @property {number} from  the height of the token that looks
 * @property {Float64Array} middles  the heights of the others
 * @property {Float64Array} weights
 * @property {number} height  of the window
 */

import { lineAlpha } from "../../core/data/attention.js";

const FAINTEST = 1 / 510;
const STRENGTH = 3;

/**
 * The lines that can be seen, the strongest last.
 *
 * @param {Fan} fan
 * @returns {{key: number, alpha: number, width: number}[]}
 */
function fanLines({ weights }) {
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
