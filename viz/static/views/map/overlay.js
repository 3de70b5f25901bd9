/** What lies over a map while the pointer moves: the rows and columns of tokens, and their names. */

import { labelled, margins } from "./plot.js";

/** Labels nearer to a name than this are covered, CSS pixels. */
const CLEAR = 16;

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {{frame: import("./plot.js").Frame, window: import("../../core/state/window.js").Window,
 *   colors: import("./paint.js").Colors, queryLabel: (index: number) => string,
 *   keyLabel: (index: number) => string}} plot
 * @param {{query: number | null, key: number | null}} kept
 * @param {{query: number, key: number} | null} pointed
 */
export function paintOverlay(pen, plot, kept, pointed) {
  const { frame, colors } = plot;
  pen.clearRect(0, 0, frame.total, frame.tall);
  if (pointed) {
    band(pen, plot, "query", pointed.query, colors.soft, false);
    band(pen, plot, "key", pointed.key, colors.soft, false);
  }
  if (kept.query !== null) band(pen, plot, "query", kept.query, colors.ink, true);
  if (kept.key !== null) band(pen, plot, "key", kept.key, colors.ink, true);
}

/**
 * A token's row or column: two lines along it, and its name on a ground of its own.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {Parameters<typeof paintOverlay>[1]} plot
 * @param {"query" | "key"} side
 * @param {number} index
 * @param {string} color
 * @param {boolean} kept
 */
function band(pen, { frame, window, colors, queryLabel, keyLabel }, side, index, color, kept) {
  const { left, top, width, height } = frame;
  const row = side === "query";
  const [from, to, length] = row ? [window[0], window[1], height] : [window[2], window[3], width];
  const cell = length / (to - from);
  const middle = (index + 0.5 - from) * cell;
  if (middle < 0 || middle > length) return;
  const half = Math.max(cell / 2, 1.5);
  const low = Math.round(Math.max(middle - half, 0));
  const high = Math.round(Math.min(middle + half, length));
  const { sums } = margins();
  pen.fillStyle = color;
  pen.globalAlpha = kept ? 0.9 : 0.55;
  for (const at of [low - 1, high]) {
    if (row) pen.fillRect(left, top + at, width + sums, 1);
    else pen.fillRect(left + at, top, 1, height + sums);
  }
  pen.globalAlpha = 1;
  pen.fillStyle = colors.paper;
  for (const other of labelled(from, to, length)) {
    const at = (other + 0.5 - from) * cell;
    if (Math.abs(at - middle) >= CLEAR) continue;
    if (row) pen.fillRect(0, top + at - 8, left - 2, 16);
    else pen.fillRect(left + at - 8, 0, 16, top - 2);
  }
  pen.save();
  if (row) pen.translate(left - 8, top + middle);
  else {
    pen.translate(left + middle, top - 8);
    pen.rotate(-Math.PI / 2);
  }
  chip(pen, row ? queryLabel(index) : keyLabel(index), row ? "right" : "left", colors, kept);
  pen.restore();
}

/**
 * @param {CanvasRenderingContext2D} pen  with its origin at the middle of the text's inner end
 * @param {string} text
 * @param {"left" | "right"} align
 * @param {import("./paint.js").Colors} colors
 * @param {boolean} kept
 */
function chip(pen, text, align, { ink, paper, wash, font }, kept) {
  pen.font = `12px ${font}`;
  pen.direction = "ltr";
  pen.textAlign = align;
  pen.textBaseline = "middle";
  const width = pen.measureText(text).width;
  const start = align === "right" ? -width : 0;
  pen.fillStyle = kept ? ink : wash;
  pen.beginPath();
  pen.roundRect(start - 4, -9, width + 8, 18, 4);
  pen.fill();
  pen.fillStyle = kept ? paper : ink;
  pen.fillText(text, 0, 0.5);
}
