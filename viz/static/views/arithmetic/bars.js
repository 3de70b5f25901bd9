/** Pictures of numbers in the arithmetic view: bars up and down, and cells under them. */

import { cssColors, edgesOf, penOn } from "../../core/draw/canvas.js";
import { signColor, shadeTable } from "../../core/draw/colors.js";
import { drawStrip } from "../../marks/strips.js";

const TALL = 132;
const CELL = 20;
const APART = 6;

/**
 * @typedef {object} BarPicture
 * @property {{name: string, numbers: ArrayLike<number>, scale: number}[]} strips  drawn as cells
 * @property {ArrayLike<number>} bars
 * @property {number[]} order  of the dimensions
 * @property {"light" | "dark"} theme
 * @property {number} pointed  the place that is pointed at, or -1
 */

/**
 * Draws strips of cells, and below them a bar for each dimension.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width  CSS pixels
 * @param {BarPicture} picture
 */
export function drawBars(canvas, width, { strips, bars, order, theme, pointed }) {
  const { ground, hair, ink } = cssColors(canvas);
  const start = strips.length * (CELL + APART) + APART;
  const pen = penOn(canvas, width, start + TALL);
  const shades = shadeTable(theme);
  strips.forEach(({ numbers, scale }, i) => {
    const sorted = order.map((dimension) => numbers[dimension]);
    drawStrip(pen, { numbers: sorted, left: 0, width, top: i * (CELL + APART), height: CELL, scale }, shades, ground);
  });
  const { zero, perUnit } = axisOf(bars, TALL);
  const edges = edgesOf(0, width, order.length);
  pen.fillStyle = hair;
  pen.fillRect(0, Math.round(start + zero), width, 1);
  order.forEach((dimension, i) => {
    const value = bars[dimension];
    const gap = edges[i + 1] - edges[i] > 4 ? 1 : 0;
    const top = start + zero - Math.max(value, 0) * perUnit;
    pen.fillStyle = signColor(value, theme);
    pen.fillRect(edges[i] + gap, top, edges[i + 1] - edges[i] - 2 * gap, Math.max(Math.abs(value) * perUnit, 0.5));
  });
  if (pointed < 0) return;
  pen.strokeStyle = ink;
  pen.strokeRect(edges[pointed] + 0.5, 0.5, Math.max(edges[pointed + 1] - edges[pointed] - 1, 1), start + TALL - 1);
}

/**
 * Where zero lies, and how high a one is, so that every bar fits.
 *
 * @param {ArrayLike<number>} bars
 * @param {number} height
 */
export function axisOf(bars, height) {
  const [high, low] = Array.from(bars).reduce(([top, bottom], value) => [Math.max(top, value), Math.min(bottom, value)], [0, 0]);
  const perUnit = (height - 2) / (high - low || 1);
  return { zero: 1 + high * perUnit, perUnit };
}
