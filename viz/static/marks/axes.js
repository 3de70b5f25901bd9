/** The frame of a plot: lines across, numbers beside them, a name above. */

import { placeOn, ticks } from "../core/draw/scale.js";

/**
 * @typedef {object} Panel  a plot, in CSS pixels
 * @property {string} title
 * @property {import("../core/draw/scale.js").Axis} x
 * @property {import("../core/draw/scale.js").Axis} y  `from` is the lower edge
 *
 * @typedef {{ink: string, soft: string, faint: string, hair: string, paper: string, ground: string}} Colors
 */

/**
 * Lines across and their numbers.
 *
 * @param {import("../core/export/figure.js").Pen} pen
 * @param {Panel} panel
 * @param {Colors} colors
 * @param {{x: number[], y?: number[], xText?: (value: number) => string, yText?: (value: number) => string, name?: string}} marks
 *   name: what is counted along the x axis
 */
export function drawAxes(pen, { title, x, y }, { ink, soft, hair }, { x: across, y: up = ticks(y.low, y.high, 4), xText = String, yText = String, name = "" }) {
  pen.text(x.from, y.to - 12, title, { size: 13, color: ink, bold: true });
  for (const value of up) {
    const at = placeOn(y, value);
    pen.line(x.from, at, x.to, at, hair, 1);
    pen.text(x.from - 6, at + 4, yText(value), { size: 11, color: soft, anchor: "end" });
  }
  for (const value of across) {
    pen.text(placeOn(x, value), y.from + 16, xText(value), { size: 11, color: soft, anchor: "middle" });
  }
  if (name) pen.text((x.from + x.to) / 2, y.from + 32, name, { size: 11, color: soft, anchor: "middle" });
}

/**
 * Whole numbers along an axis: as many as have room.
 *
 * @param {number} count
 * @param {number} width
 */
export function wholeTicks(count, width) {
  const room = Math.max(1, Math.floor(width / 22));
  const step = [1, 2, 4, 5, 10, 20, 50].find((every) => count / every <= room) ?? 100;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}
