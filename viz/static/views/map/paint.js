/**
 * A map with its labels and sums, painted with a pen of figure.js: on the screen and in a file.
 *
 * @typedef {import("../../core/state/window.js").Window} Window
 * @typedef {import("./plot.js").Frame} Frame
 * @typedef {import("./plot.js").Weights} Weights
 *
 * @typedef {object} Colors
 * @property {string} ink
 * @property {string} soft
 * @property {string} faint
 * @property {string} paper
 * @property {string} wash
 * @property {string} font
 */

import { penOf } from "../../core/draw/canvas.js";
import { tokenText } from "../../core/text/text.js";
import { cover, fillMap, labelled, margins, sumsOf } from "./plot.js";
import { inksOfScale, partOf } from "./scale.js";

/** How many of the longest texts are measured to find the longest label. */
const MEASURED = 40;
const SIZE = 12;
const SMALL = 11;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width  device pixels
 * @param {number} height
 * @param {Weights} weights
 * @param {Window} window
 * @param {{theme: "light" | "dark", scale: "root" | "linear", paper: string}} look
 */
export function paintCells(canvas, width, height, weights, window, { theme, scale, paper }) {
  canvas.width = width;
  canvas.height = height;
  const pen = penOf(canvas);
  const image = pen.createImageData(width, height);
  const inks = inksOfScale(theme, paper);
  const last = inks.length - 2;
  const ink = (/** @type {number} */ weight) => inks[Math.round(partOf(weight, weights.largest, scale) * last)];
  fillMap(new Uint32Array(image.data.buffer), width, height, weights, window, ink, inks[last + 1]);
  pen.putImageData(image, 0, 0);
}

/**
 * Text cut to a width with an ellipsis.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {string} text
 * @param {number} room
 */
export function shortenTo(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  const characters = [...text];
  let [low, high] = [0, characters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${characters.slice(0, middle).join("")}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return `${characters.slice(0, low).join("")}…`;
}

/**
 * @param {import("../../core/data/data.js").Tokens} tokens
 * @param {number} index
 */
export function labelOf(tokens, index) {
  const { mark, text } = tokenText(tokens, index, 40);
  return mark + text;
}

/**
 * The width of the longest label, CSS pixels.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {import("../../core/data/data.js").Tokens[]} sides
 */
export function longestLabel(pen, sides) {
  const texts = sides.flatMap((tokens) =>
    tokens.text.map((_, i) => labelOf(tokens, i)).sort((a, b) => b.length - a.length).slice(0, MEASURED),
  );
  return Math.max(...texts.map((text) => pen.measureText(text).width));
}

/**
 * Labels and sums around the cells.
 *
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {{frame: Frame, window: Window, weights: Weights, colors: Colors,
 *   queryLabel: (index: number) => string, keyLabel: (index: number) => string}} plot
 */
export function paintAround(pen, { frame, window, weights, colors, queryLabel, keyLabel }) {
  const { left, top, width, height } = frame;
  const [low, high, first, end] = window;
  for (const i of labelled(low, high, height)) {
    const y = top + ((i + 0.5 - low) / (high - low)) * height;
    pen.text(left - 8, y + 4, queryLabel(i), { size: SIZE, color: colors.soft, anchor: "end" });
  }
  for (const i of labelled(first, end, width)) {
    const x = left + ((i + 0.5 - first) / (end - first)) * width;
    pen.text(x + 4, top - 8, keyLabel(i), { size: SIZE, color: colors.soft, angle: -90 });
  }
  pen.text(left - 8, top - 25, "key →", { size: SMALL, color: colors.faint, anchor: "end" });
  pen.text(left - 8, top - 9, "query ↓", { size: SMALL, color: colors.faint, anchor: "end" });
  paintSums(pen, frame, window, weights, colors);
}

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {Frame} frame
 * @param {Window} window
 * @param {Weights} weights
 * @param {Colors} colors
 */
function paintSums(pen, { left, top, width, height }, window, weights, colors) {
  const { bar, gap } = margins();
  const sums = sumsOf(weights, window);
  const most = sums.columns.reduce((a, b) => Math.max(a, b), 0);
  const widest = sums.rows.reduce((a, b) => Math.max(a, b), 1);
  bars(sums.columns, window[2], window[3], width, (at, length, sum) => {
    pen.rect(left + at, top + height + gap, length, (bar * sum) / (most || 1), colors.faint);
  });
  bars(sums.rows, window[0], window[1], height, (at, length, sum) => {
    pen.rect(left + width + gap, top + at, (bar * sum) / widest, length, colors.faint, 0.6);
  });
  pen.text(left - 8, top + height + gap + 11, "received", { size: SMALL, color: colors.soft, anchor: "end" });
  pen.text(left - 8, top + height + gap + 26, `to ${most.toFixed(most < 9.95 ? 2 : 1)}`, { size: SMALL, color: colors.faint, anchor: "end" });
  pen.text(left + width + gap, top - 8, "sum", { size: SMALL, color: colors.soft });
}

/**
 * A bar for each token, or for each pixel the largest of those it covers.
 *
 * @param {Float64Array} sums  of the tokens from round(from) on
 * @param {number} from
 * @param {number} to
 * @param {number} length  CSS pixels
 * @param {(at: number, length: number, sum: number) => void} draw
 */
function bars(sums, from, to, length, draw) {
  const start = Math.round(from);
  const cell = length / (to - from);
  if (cell >= 2) {
    const gap = cell >= 6 ? 1 : 0;
    sums.forEach((sum, i) => {
      const low = Math.max((start + i - from) * cell, 0);
      const high = Math.min((start + i + 1 - from) * cell, length);
      draw(low + gap / 2, high - low - gap, sum);
    });
    return;
  }
  const { first, end } = cover(from, to, length, start + sums.length);
  for (let x = 0; x < length; x += 1) {
    let most = 0;
    for (let i = first[x]; i < end[x]; i += 1) most = Math.max(most, sums[i - start] ?? 0);
    draw(x, 1, most);
  }
}

/**
 * A pen that draws on a canvas.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} font
 * @returns {import("../../core/export/figure.js").Pen}
 */
export function canvasPen(context, font) {
  return {
    rect(x, y, width, height, color, alpha = 1) {
      context.globalAlpha = alpha;
      context.fillStyle = color;
      context.fillRect(x, y, width, height);
      context.globalAlpha = 1;
    },
    line() {},
    curve() {},
    dot() {},
    text(x, y, text, { size, color, anchor = "start", bold = false, angle = 0 }) {
      context.save();
      context.translate(x, y);
      context.rotate((angle * Math.PI) / 180);
      context.font = `${bold ? "600 " : ""}${size}px ${font}`;
      context.fillStyle = color;
      context.textAlign = anchor === "middle" ? "center" : anchor;
      context.direction = "ltr";
      context.fillText(text, 0, 0);
      context.restore();
    },
    image(x, y, width, height, image) {
      context.imageSmoothingEnabled = false;
      context.drawImage(image, x, y, width, height);
    },
  };
}
