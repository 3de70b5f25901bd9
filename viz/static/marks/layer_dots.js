/**
 * The frame of a plot: lines across, numbers beside them, a name above.
 *
 * @import { Axis } from "../core/draw/canvas.js"
 * @import { Pen } from "../core/export/figure.js"
 */

import { placeOn, roundTop, ticks } from "../core/draw/canvas.js";

/**
 * @typedef {object} Panel  a plot, in CSS pixels
 * @property {string} title
 * @property {Axis} x
 * @property {Axis} y  `from` is the lower edge
 *
 * @typedef {{ink: string, soft: string, faint: string, hair: string, paper: string, ground: string}} Colors
 */

/**
 * Lines across and their numbers.
 *
 * @param {Pen} pen
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

/** Whole numbers along an axis: as many as have room. @param {number} count @param {number} width */
export function wholeTicks(count, width) {
  const room = Math.max(1, Math.floor(width / 22));
  const step = [1, 2, 4, 5, 10, 20, 50].find((every) => count / every <= room) ?? 100;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

/**
 * Numbers of heads by layer, as in the figures of Clark et al. 2019: a dot a head, and a line
 * through the means of the layers. Within a layer the heads stand side by side, by number.
 *
 * @typedef {object} HeadNumbers  layer by layer, head by head; null where there is none
 * @property {string} title
 * @property {(number | null)[]} mean
 * @property {(number | null)[]} [low]  of confidence intervals
 * @property {(number | null)[]} [high]
 * @property {string} [unit]  of its numbers
 *
 * @typedef {{x: number, y: number, place: number, panel: number}} HeadPoint  place: layer times heads plus head
 */

/** CSS pixels: of a panel, around it, and the least width. */
const HEIGHT = 172;
const [LEFT, RIGHT, ABOVE, BELOW] = [44, 10, 30, 42];
const LEAST = 290;
/** The part of a layer's width that its heads take. */
const SPREAD = 0.72;

/**
 * Panels side by side, as many in a row as there is room for, with one scale for each unit.
 *
 * @param {{width: number, panels: HeadNumbers[], nLayers: number, nHeads: number, chosen: number,
 *   color: string, colors: Colors, text: (value: number, unit?: string) => string}} plot  chosen: a place, or -1
 */
export function layerPanels({ width, panels, nLayers, nHeads, chosen, color, colors, text }) {
  const most = Math.max(1, Math.floor(width / LEAST));
  // As many in each row as in the others, where that can be.
  const columns = Math.ceil(panels.length / Math.ceil(panels.length / most));
  const pitch = [width / columns, ABOVE + HEIGHT + BELOW];
  const framed = panels.map((panel, i) => {
    const [left, above] = [(i % columns) * pitch[0], Math.floor(i / columns) * pitch[1]];
    const x = { low: -0.5, high: nLayers - 0.5, from: left + LEFT, to: left + pitch[0] - RIGHT };
    const y = { low: 0, high: topOf(panels.filter(({ unit }) => unit === panel.unit)), from: above + ABOVE + HEIGHT, to: above + ABOVE };
    return { ...panel, x, y };
  });
  const points = framed.flatMap((panel, i) =>
    panel.mean.flatMap((value, place) => (value === null ? [] : [{ ...pointAt(panel, place, nHeads, value), place, panel: i }])),
  );
  return {
    width,
    height: Math.ceil(panels.length / columns) * pitch[1],
    points,
    /** @param {Pen} pen */
    paint(pen) {
      for (const panel of framed) {
        const across = wholeTicks(nLayers, panel.x.to - panel.x.from);
        const yText = (/** @type {number} */ value) => text(value, panel.unit);
        drawAxes(pen, panel, colors, { x: across, y: ticks(0, panel.y.high, 4), yText, name: "layer" });
        drawHeads(pen, panel, nHeads, { chosen, color, colors });
        drawMeans(pen, panel, nLayers, nHeads, colors);
      }
    },
  };
}

/** Where the scale of these panels ends. @param {HeadNumbers[]} panels */
function topOf(panels) {
  const numbers = panels.flatMap(({ mean, high = [] }) => [...mean, ...high]).filter((one) => one !== null);
  return roundTop(Math.max(...numbers));
}

/** @param {Panel} panel @param {number} place @param {number} nHeads @param {number} value */
function pointAt({ x, y }, place, nHeads, value) {
  const [layer, head] = [Math.floor(place / nHeads), place % nHeads];
  const across = nHeads > 1 ? (head / (nHeads - 1) - 0.5) * SPREAD : 0;
  return { x: placeOn(x, layer + across), y: placeOn(y, value) };
}

/**
 * @param {Pen} pen
 * @param {HeadNumbers & Panel} panel
 * @param {number} nHeads
 * @param {{chosen: number, color: string, colors: Colors}} look
 */
function drawHeads(pen, panel, nHeads, { chosen, color, colors }) {
  panel.mean.forEach((value, place) => {
    if (value === null) return;
    const { x, y } = pointAt(panel, place, nHeads, value);
    const [low, high] = [panel.low?.[place] ?? null, panel.high?.[place] ?? null];
    if (low !== null && high !== null) {
      pen.line(x, placeOn(panel.y, Math.max(low, 0)), x, placeOn(panel.y, high), color, 1, 0.45);
    }
    if (place === chosen) drawRing(pen, x, y, colors);
    pen.dot(x, y, place === chosen ? 3.6 : 2.4, color, 0.85);
  });
}

/** What marks the head that is chosen. @param {Pen} pen @param {number} x @param {number} y @param {Colors} colors */
export function drawRing(pen, x, y, { ink, paper }) {
  pen.dot(x, y, 7.5, ink);
  pen.dot(x, y, 5.5, paper);
}

/**
 * @param {Pen} pen
 * @param {HeadNumbers & Panel} panel
 * @param {number} nLayers
 * @param {number} nHeads
 * @param {Colors} colors
 */
function drawMeans(pen, { mean, x, y }, nLayers, nHeads, { ink }) {
  let before = /** @type {[number, number] | null} */ (null);
  for (let layer = 0; layer < nLayers; layer += 1) {
    const average = meanOf(mean.slice(layer * nHeads, (layer + 1) * nHeads));
    if (average === null) continue;
    /** @type {[number, number]} */
    const here = [placeOn(x, layer), placeOn(y, average)];
    if (before) pen.line(...before, ...here, ink, 1.5, 0.8);
    else pen.dot(...here, 1.5, ink, 0.8);
    before = here;
  }
}

/** @param {(number | null)[]} numbers */
export function meanOf(numbers) {
  const known = numbers.filter((one) => one !== null);
  return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
}
