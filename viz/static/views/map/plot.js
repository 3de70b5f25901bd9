/**
 * Where a map stands on its canvas, and which tokens are under which pixels.
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
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Window } from "../../core/state/window.js"
 * @import { MapView } from "./map.js"
 */

import { penOf } from "../../core/draw/canvas.js";
import { channels, mixed } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { tokenText } from "../../core/text/text.js";

/** Room for sums beside and below, the bars in it, and the gap before them, CSS pixels. */
const MARGIN = { sums: 46, bar: 34, gap: 8 };
/** The largest cell, so that a short text stays a figure and no wall. */
const LARGEST_CELL = 46;
/** The longest label, and on a narrow page. */
const LONGEST = 116;
const LONGEST_NARROW = 68;
/** How far apart labels stand at least. */
const LABEL_STEP = 14;

/**
 * @param {number} room  CSS pixels there are
 * @param {number} longest  the width of the longest label
 * @param {{nQueries: number, nKeys: number}} sizes
 * @returns {Frame}
 */
export function frameFor(room, longest, { nQueries, nKeys }) {
  const label = Math.ceil(Math.max(Math.min(longest, room < 520 ? LONGEST_NARROW : LONGEST), 40));
  const left = label + 14;
  const top = label + 12;
  const shape = Math.min(Math.max(nQueries / nKeys, 0.4), 1.4);
  const width = Math.floor(Math.min(room - left - MARGIN.sums, nKeys * LARGEST_CELL));
  const height = Math.floor(width * shape);
  return { left, top, width, height, total: left + width + MARGIN.sums, tall: top + height + MARGIN.sums };
}

/**
 * @param {Weights["probs"]} probs
 * @param {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @returns {Weights}
 */
export function weightsOf(probs, { nQueries, nKeys, causal }) {
  const received = new Float64Array(nKeys);
  let largest = 0;
  for (let query = 0, at = 0; query < nQueries; query += 1) {
    for (let key = 0; key < nKeys; key += 1, at += 1) {
      received[key] += probs[at];
      if (probs[at] > largest) largest = probs[at];
    }
  }
  return { probs, nQueries, nKeys, causal, largest, received };
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
 * Fills an image with a map, each pixel the largest weight it covers.
 *
 * @param {Uint32Array} pixels
 * @param {number} width  device pixels
 * @param {number} height
 * @param {Weights} weights
 * @param {Window} window
 * @param {(weight: number) => number} inkOf
 * @param {number} blank  of cells that are not drawn
 */
function fillMap(pixels, width, height, { probs, nQueries, nKeys, causal }, window, inkOf, blank) {
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
      if (across.first[x] >= seen) {
        pixels[to + x] = blank;
        continue;
      }
      let most = 0;
      for (let query = down.first[y]; query < down.end[y]; query += 1) {
        const row = query * nKeys;
        for (let key = across.first[x]; key < across.end[x]; key += 1) {
          if (probs[row + key] > most) most = probs[row + key];
        }
      }
      pixels[to + x] = inkOf(most);
    }
  }
}

/**
 * The strongest of the cells under a point of the map, or null beside it.
 *
 * @param {Weights} weights
 * @param {Window} window
 * @param {Frame} frame
 * @param {number} x  CSS pixels from the canvas's corner
 * @param {number} y
 * @returns {{query: number, key: number} | null}
 */
export function cellAt({ probs, nQueries, nKeys }, window, { left, top, width, height }, x, y) {
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

/** What rows and columns add up to over the cells in view. @param {Weights} weights @param {Window} window */
export function sumsOf({ probs, nKeys }, window) {
  const [top, bottom, left, right] = window.map(Math.round);
  const rows = new Float64Array(bottom - top);
  const columns = new Float64Array(right - left);
  for (let query = top; query < bottom; query += 1) {
    for (let key = left; key < right; key += 1) {
      const weight = probs[query * nKeys + key];
      rows[query - top] += weight;
      columns[key - left] += weight;
    }
  }
  return { rows, columns };
}

/**
 * The tokens that have a label: all, or every so many, the same ones wherever the window is.
 *
 * @param {number} from  tokens
 * @param {number} to
 * @param {number} length  CSS pixels
 * @returns {number[]}
 */
export function labelled(from, to, length) {
  const cell = length / (to - from);
  const step = Math.max(1, Math.ceil(LABEL_STEP / cell));
  const numbers = [];
  for (let i = Math.ceil(Math.ceil(from - 0.5) / step) * step; i + 0.5 <= to; i += step) numbers.push(i);
  return numbers;
}

/**
 * The colours of weights on a map: one hue after another, steadily darker on white and lighter
 * on black, so that they are in order for every kind of sight; tests measure that.
 */

/** @type {Record<string, string[]>} */
export const SCALES = {
  light: ["#f3f5f6", "#cfe0ea", "#93c3dc", "#4b9bc9", "#2070ae", "#12467f", "#081d45"],
  dark: ["#1d2127", "#1d3654", "#1f5a86", "#2f86ab", "#5bb3b8", "#a6dcb4", "#fbf8c8"],
};

/** Steps from the lightest to the darkest. */
const STEPS = 512;

/**
 * The pixels of weights from 0 to the largest; the one behind them is of what is not drawn.
 *
 * @param {"light" | "dark"} theme
 * @param {string} paper
 */
function inksOfScale(theme, paper) {
  const inks = new Uint32Array(STEPS + 1);
  for (let i = 0; i < STEPS; i += 1) inks[i] = pixel(mixed(SCALES[theme], i / (STEPS - 1)));
  inks[STEPS] = pixel(channels(paper));
  return inks;
}

/** @param {number[]} color */
function pixel([red, green, blue]) {
  const bytes = Uint8ClampedArray.of(red, green, blue, 255);
  return new Uint32Array(bytes.buffer)[0];
}

/**
 * The way along the scale that a weight is.
 *
 * @param {number} weight
 * @param {number} largest
 * @param {"root" | "linear"} scale
 */
function partOf(weight, largest, scale) {
  if (largest <= 0) return 0;
  const part = Math.min(weight / largest, 1);
  return scale === "root" ? Math.sqrt(part) : part;
}

/** @param {"light" | "dark"} theme @returns {string}  a CSS image */
export function gradientOf(theme) {
  return `linear-gradient(90deg, ${SCALES[theme].join(", ")})`;
}

/**
 * A map with its labels and sums, painted with a pen of figure.js: on the screen and in a file.
 *
 * @typedef {object} Colors
 * @property {string} ink
 * @property {string} soft
 * @property {string} faint
 * @property {string} paper
 * @property {string} wash
 * @property {string} font
 */

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

/** @param {Tokens} tokens @param {number} index */
export function labelOf(tokens, index) {
  const { mark, text } = tokenText(tokens, index, 40);
  return mark + text;
}

/** The width of the longest label, CSS pixels. @param {CanvasRenderingContext2D} pen @param {Tokens[]} sides */
export function longestLabel(pen, sides) {
  const texts = sides.flatMap((tokens) =>
    tokens.text.map((_, i) => labelOf(tokens, i)).sort((a, b) => b.length - a.length).slice(0, MEASURED),
  );
  return Math.max(...texts.map((text) => pen.measureText(text).width));
}

/**
 * Labels and sums around the cells.
 *
 * @param {Pen} pen
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

/** @param {Pen} pen @param {Frame} frame @param {Window} window @param {Weights} weights @param {Colors} colors */
function paintSums(pen, { left, top, width, height }, window, weights, colors) {
  const { bar, gap } = MARGIN;
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

/** Labels nearer to a name than this are covered, CSS pixels. */
const CLEAR = 16;

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {{frame: Frame, window: Window,
 *   colors: Colors, queryLabel: (index: number) => string,
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
  const { sums } = MARGIN;
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
 * @param {Colors} colors
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

/** CSS pixels around it. */
const AROUND = 16;
/** Pixels a side of the image, at most. */
const LARGEST = 2048;

/**
 * @param {ReturnType<MapView["plot"]>} plot
 * @param {{name: string, theme: "light" | "dark", scale: "root" | "linear",
 *   tokens: Tokens, keyTokens: Tokens}} about
 * @returns {Figure}
 */
export function mapFigure(plot, { name, theme, scale, tokens, keyTokens }) {
  const { weights, colors } = plot;
  const [top, bottom, left, right] = plot.window.map(Math.round);
  const frame = { ...plot.frame, left: plot.frame.left + AROUND, top: plot.frame.top + AROUND };
  return {
    name,
    width: frame.total + 2 * AROUND,
    height: frame.tall + 2 * AROUND,
    paper: colors.paper,
    paint(pen) {
      const canvas = element("canvas");
      const [width, height] = [Math.min(right - left, LARGEST), Math.min(bottom - top, LARGEST)];
      paintCells(canvas, width, height, weights, [top, bottom, left, right], { theme, scale, paper: colors.paper });
      pen.image(frame.left, frame.top, frame.width, frame.height, canvas);
      paintAround(pen, { ...plot, frame, window: [top, bottom, left, right] });
    },
    columns: ["query", "query token", "key", "key token", "weight"],
    *rows() {
      for (let query = top; query < bottom; query += 1) {
        const end = weights.causal ? Math.min(right, query + 1) : right;
        for (let key = left; key < end; key += 1) {
          const weight = weights.probs[query * weights.nKeys + key];
          yield [query, tokens.text[query], key, keyTokens.text[key], weight];
        }
      }
    },
  };
}
