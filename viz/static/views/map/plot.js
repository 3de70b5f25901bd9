/**
 * A map with its labels and sums, painted with a pen of figure.js: on the screen and in a file.
 *
 * @typedef {[number, number, number, number]} Window  what is seen: [first query, end, first key, end], with fractions
 *
 * @typedef {object} Weights  of one head
 * @property {Float32Array} probs  (query, key)
 * @property {number} nQueries
 * @property {number} nKeys
 * @property {boolean} causal
 * @property {number} largest
 * @property {Float64Array} received  by each key, from all queries
 *
 * @typedef {object} Frame  in CSS pixels
 * @property {number} left  room for the tokens that look
 * @property {number} top  room for the tokens that are looked at
 * @property {number} width  of the map
 * @property {number} height
 * @property {number} total  with all that is around it
 * @property {number} tall
 *
 * @typedef {object} Plot
 * @property {Frame} frame
 * @property {Window} window
 * @property {Weights} weights
 * @property {CssColors} colors
 * @property {Tokens} tokens
 * @property {Tokens} keyTokens
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Pen } from "../../core/export/figure.js"
 */

import { penOf } from "../../core/draw/canvas.js";
import { channels, pixelOf, pixelsOf } from "../../core/draw/colors.js";
import { tokenText } from "../../core/text/text.js";

/** Room for the sums below, the bars in it, and the gap before them, CSS pixels. */
const MARGIN = { sums: 46, bar: 34, gap: 8 };
/** The largest cell, so that a short text stays a figure and no wall. */
const LARGEST_CELL = 46;
/** The longest label, and on a narrow page, CSS pixels; the letters that fit in. */
const LONGEST = 116;
const LONGEST_NARROW = 68;
const LETTERS = 16;
/** The share of a window's height that it takes at most, and in a narrow one, where more stands above it. */
const TALLEST = 0.62;
const TALLEST_NARROW = 0.34;
/** How far apart labels stand at least. */
const LABEL_STEP = 14;
const SIZE = 12;
const SMALL = 11;

/** The names of a text's tokens, as they stand beside the map. @param {Tokens} tokens @param {number} index */
function labelOf(tokens, index) {
  const { mark, text } = tokenText(tokens, index, LETTERS);
  return mark + text;
}

/**
 * @param {CanvasRenderingContext2D} pen  with the font of labels
 * @param {number} room  CSS pixels there are
 * @param {Tokens} tokens
 * @param {Tokens} keyTokens
 * @returns {Frame}
 */
export function frameFor(pen, room, tokens, keyTokens) {
  const [nQueries, nKeys] = [tokens.text.length, keyTokens.text.length];
  const widths = [tokens, keyTokens].flatMap((side) => side.text.map((_, i) => pen.measureText(labelOf(side, i)).width));
  const longest = widths.reduce((most, width) => Math.max(most, width), 40);
  const label = Math.ceil(Math.min(longest, room < 520 ? LONGEST_NARROW : LONGEST));
  const [left, top] = [label + 14, label + 12];
  const shape = Math.min(Math.max(nQueries / nKeys, 0.4), 1.4);
  const tallest = innerHeight * (room < 520 ? TALLEST_NARROW : TALLEST) - top - MARGIN.sums;
  const width = Math.floor(Math.min(room - left, nKeys * LARGEST_CELL, Math.max(tallest, 120) / shape));
  const height = Math.floor(width * shape);
  return { left, top, width, height, total: left + width, tall: top + height + MARGIN.sums };
}

/** @param {Weights["probs"]} probs @param {{nQueries: number, nKeys: number, causal: boolean}} sizes @returns {Weights} */
export function weightsOf(probs, { nQueries, nKeys, causal }) {
  const received = new Float64Array(nKeys);
  probs.forEach((weight, at) => (received[at % nKeys] += weight));
  return { probs, nQueries, nKeys, causal, largest: probs.reduce((most, weight) => Math.max(most, weight), 0), received };
}

/**
 * The first and the end of the cells that each pixel covers.
 *
 * @param {number} from  tokens
 * @param {number} to
 * @param {number} pixels
 * @param {number} size
 */
function cover(from, to, pixels, size) {
  const step = (to - from) / pixels;
  const first = new Int32Array(pixels);
  const end = new Int32Array(pixels);
  for (let i = 0; i < pixels; i += 1) {
    first[i] = Math.min(Math.floor(from + (i + (step < 1 ? 0.5 : 0)) * step), size - 1);
    end[i] = Math.min(Math.max(first[i] + 1, step < 1 ? 0 : Math.floor(from + (i + 1) * step)), size);
  }
  return { first, end };
}

/**
 * The strongest of the cells under a point of the map, or null beside it.
 *
 * @param {Plot} plot
 * @param {number} x  CSS pixels from the canvas's corner
 * @param {number} y
 * @returns {{query: number, key: number} | null}
 */
export function cellAt({ weights: { probs, nQueries, nKeys }, window, frame: { left, top, width, height } }, x, y) {
  if (x < left || y < top || x >= left + width || y >= top + height) return null;
  const down = cover(window[0], window[1], height, nQueries);
  const across = cover(window[2], window[3], width, nKeys);
  const [row, column] = [Math.floor(y - top), Math.floor(x - left)];
  const best = { query: down.first[row], key: across.first[column] };
  for (let query = down.first[row]; query < down.end[row]; query += 1) {
    for (let key = across.first[column]; key < across.end[column]; key += 1) {
      if (probs[query * nKeys + key] > probs[best.query * nKeys + best.key]) Object.assign(best, { query, key });
    }
  }
  return best;
}

/**
 * The tokens that have a label: all, or every so many, the same ones wherever the window is.
 *
 * @param {number} from  tokens
 * @param {number} to
 * @param {number} length  CSS pixels
 * @returns {number[]}
 */
function labelled(from, to, length) {
  const step = Math.max(1, Math.ceil((LABEL_STEP * (to - from)) / length));
  const numbers = [];
  for (let i = Math.ceil(Math.ceil(from - 0.5) / step) * step; i + 0.5 <= to; i += step) numbers.push(i);
  return numbers;
}

/**
 * The colours of weights on a map: one hue after another, steadily darker on white and lighter
 * on black, so that they are in order for every kind of sight; tests measure that.
 *
 * @type {Record<string, string[]>}
 */
export const SCALES = {
  light: ["#f3f5f6", "#cfe0ea", "#93c3dc", "#4b9bc9", "#2070ae", "#12467f", "#081d45"],
  dark: ["#1d2127", "#1d3654", "#1f5a86", "#2f86ab", "#5bb3b8", "#a6dcb4", "#fbf8c8"],
};

/** Steps from the lightest to the darkest. */
const STEPS = 512;

/**
 * Each pixel has the colour of the largest weight it covers; what a causal head cannot see is paper.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width  device pixels
 * @param {number} height
 * @param {Plot} plot
 * @param {"light" | "dark"} theme
 */
export function paintCells(canvas, width, height, { weights, window, colors }, theme) {
  const { probs, nQueries, nKeys, causal, largest } = weights;
  Object.assign(canvas, { width, height });
  const pen = penOf(canvas);
  const image = pen.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const inks = pixelsOf(SCALES[theme], STEPS + 1);
  const blank = pixelOf(channels(colors.paper));
  const down = cover(window[0], window[1], height, nQueries);
  const across = cover(window[2], window[3], width, nKeys);
  for (let y = 0; y < height; y += 1) {
    const to = y * width;
    if (y > 0 && down.first[y] === down.first[y - 1] && down.end[y] === down.end[y - 1]) {
      pixels.copyWithin(to, to - width, to);
      continue;
    }
    const seen = causal ? down.end[y] : nKeys;
    for (let x = 0; x < width; x += 1) {
      let most = 0;
      for (let query = down.first[y]; query < down.end[y]; query += 1) {
        const row = query * nKeys;
        for (let key = across.first[x]; key < across.end[x]; key += 1) if (probs[row + key] > most) most = probs[row + key];
      }
      pixels[to + x] = across.first[x] >= seen ? blank : inks[Math.round(Math.sqrt(most / (largest || 1)) * STEPS)];
    }
  }
  pen.putImageData(image, 0, 0);
}

/** Cells, labels and sums. @param {Pen} pen @param {Plot} plot @param {HTMLCanvasElement} cells */
export function paintMap(pen, plot, cells) {
  const { frame: { left, top, width, height }, window: [low, high, first, end], colors, tokens, keyTokens } = plot;
  pen.image(left, top, width, height, cells);
  for (const i of labelled(low, high, height)) {
    const y = top + ((i + 0.5 - low) / (high - low)) * height;
    pen.text(left - 8, y + 4, labelOf(tokens, i), { size: SIZE, color: colors.soft, anchor: "end" });
  }
  for (const i of labelled(first, end, width)) {
    const x = left + ((i + 0.5 - first) / (end - first)) * width;
    pen.text(x + 4, top - 8, labelOf(keyTokens, i), { size: SIZE, color: colors.soft, angle: -90 });
  }
  pen.text(left - 8, top - 25, "key →", { size: SMALL, color: colors.soft, anchor: "end" });
  pen.text(left - 8, top - 9, "query ↓", { size: SMALL, color: colors.soft, anchor: "end" });
  paintReceived(pen, plot);
}

/** Below each column, or each pixel of several, the largest sum. @param {Pen} pen @param {Plot} plot */
function paintReceived(pen, { frame: { left, top, width, height }, window: [, , first, end], weights: { received, nKeys }, colors }) {
  const most = received.reduce((a, b) => Math.max(a, b), 0);
  const below = top + height + MARGIN.gap;
  const cell = width / (end - first);
  const covered = cover(first, end, width, nKeys);
  for (let x = 0; x < width; x += 1) {
    const sum = received.subarray(covered.first[x], covered.end[x]).reduce((a, b) => Math.max(a, b), 0);
    const gap = cell >= 6 && covered.first[x + 1] !== covered.first[x];
    if (!gap) pen.rect(left + x, below, 1, (MARGIN.bar * sum) / (most || 1), colors.faint);
  }
  pen.text(left - 8, below + 11, "received,", { size: SMALL, color: colors.soft, anchor: "end" });
  pen.text(left - 8, below + 26, `up to ${most.toFixed(most < 9.95 ? 2 : 1)}`, { size: SMALL, color: colors.soft, anchor: "end" });
}

/**
 * A token's row or column: two lines along it, and its name on a ground of its own.
 *
 * @param {Pen} pen
 * @param {Plot} plot
 * @param {"query" | "key"} side
 * @param {number} index
 * @param {boolean} kept
 */
export function paintBand(pen, { frame, window, colors, tokens, keyTokens }, side, index, kept) {
  const { left, top, width, height } = frame;
  const row = side === "query";
  const [from, to, length] = row ? [window[0], window[1], height] : [window[2], window[3], width];
  const cell = length / (to - from);
  const middle = (index + 0.5 - from) * cell;
  if (middle < 0 || middle > length) return;
  const half = Math.max(cell / 2, 1.5);
  const [ground, color] = kept ? [colors.ink, colors.paper] : [colors.wash, colors.ink];
  for (const at of [middle - half - 1, middle + half]) {
    if (row) pen.rect(left, top + at, width, 1, colors.ink, kept ? 0.9 : 0.55);
    else pen.rect(left + at, top, 1, height, colors.ink, kept ? 0.9 : 0.55);
  }
  if (row) {
    pen.rect(0, top + middle - 9, left - 4, 18, ground);
    pen.text(left - 8, top + middle + 4, labelOf(tokens, index), { size: SIZE, color, anchor: "end" });
  } else {
    pen.rect(left + middle - 9, 0, 18, top - 4, ground);
    pen.text(left + middle + 4, top - 8, labelOf(keyTokens, index), { size: SIZE, color, angle: -90 });
  }
}
