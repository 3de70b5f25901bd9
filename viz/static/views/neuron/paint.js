/**
 * What the neuron view draws: numbers beside tokens, the lines of one query, strips of cells.
 *
 * @typedef {object} Loaded  the head that is shown
 * @property {number} layer
 * @property {number} head
 * @property {Vectors} vectors
 * @property {{vectors: number, products: number, scores: number}} scales
 *
 * @typedef {object} Cell  the cell that is pointed at
 * @property {number} key  -1: the query's own strip
 * @property {number} dimension
 *
 * @typedef {object} Scene
 * @property {Loaded} loaded
 * @property {Row} row
 * @property {number} key
 * @property {"light" | "dark"} theme
 * @property {Span} span  keys in sight
 * @property {number} top  where the drawn window begins
 * @property {number} height
 * @property {Cell | null} cell
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example, Vectors } from "../../core/data/example.js"
 * @import { Row } from "../../core/data/softmax.js"
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Rows } from "../../marks/rows.js"
 * @import { NeuronFrame } from "./neuron.js"
 */

import { productsOf, sees, vectorOf } from "../../core/data/softmax.js";
import { cssColors, penOf, penOn } from "../../core/draw/canvas.js";
import { headColor, scaleFor, shadeIndex, shadeTable, signedShade, weightShade } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { screenPen } from "../../core/export/pens.js";
import { share, written } from "../../core/text/numbers.js";
import { tokenText } from "../../core/text/text.js";
import { drawFan, drawStrip, frameCell } from "../../marks/strips.js";

/** Height of the query's strip. */
const TALL = 18;
/** How strong masked keys are drawn. */
const MASKED = 0.22;

/** Scores and weights in numbers. @param {Rows} keys @param {Scene} scene */
export function writeNumbers(keys, { loaded, row, theme }) {
  const color = headColor(loaded.head, theme);
  for (const [i, item] of keys.items) {
    const masked = !sees(row, i);
    const [score, weight] = /** @type {NodeListOf<HTMLDataElement>} */ (item.querySelectorAll(":scope > data"));
    item.classList.toggle("out", masked);
    score.value = masked ? "-Infinity" : String(row.scores[i]);
    score.textContent = masked ? "masked" : written(row.scores[i], 2);
    score.style.backgroundColor = masked ? "" : signedShade(row.scores[i], loaded.scales.scores, theme);
    weight.value = String(row.weights[i]);
    weight.textContent = masked ? "–" : share(row.weights[i]);
    weight.style.backgroundColor = weightShade(color, row.weights[i], theme);
  }
}

/** @param {NeuronFrame} frame @param {Scene} scene @param {{query: Float64Array, key: Float64Array}} tops */
export function drawLines(frame, { loaded, row, top, height, theme }, tops) {
  const width = frame.between.clientWidth;
  const pen = screenPen(frame.lines, width, height);
  frame.lines.style.top = `${top}px`;
  const middles = tops.key.map((y) => y + frame.row / 2 - top);
  const from = tops.query[row.query] + frame.row / 2 - top;
  const color = headColor(loaded.head, theme);
  const count = drawFan(pen, { width, from, middles, weights: row.weights, height }, color);
  frame.lines.dataset.lines = String(count);
}

/** @param {NeuronFrame} frame @param {Scene} scene @param {Float64Array} tops  of the keys */
export function drawVectors(frame, { loaded: { vectors, scales }, row, span, top, height, theme, cell }, tops) {
  const { head } = frame;
  const { ground, ink } = cssColors(frame.root);
  const shades = shadeTable(theme);
  const { left: origin } = frame.right.getBoundingClientRect();
  const [first, second] = [head.key, head.product].map((column) => column.getBoundingClientRect());
  const width = first.width;
  const pen = penOn(frame.cells, second.right - first.left, height);
  frame.cells.style.left = `${first.left - origin}px`;
  frame.cells.style.top = `${top}px`;
  for (let i = span.first; i < span.end; i += 1) {
    pen.globalAlpha = sees(row, i) ? 1 : MASKED;
    const place = { width, top: tops[i] - top + 2, height: frame.row - 4 };
    const key = { ...place, numbers: vectorOf(vectors.key, i, vectors.width), left: 0, scale: scales.vectors };
    const numbers = productsOf(vectors, row.query, i);
    const product = { ...place, numbers, left: second.left - first.left, scale: scales.products };
    drawStrip(pen, key, shades, ground);
    drawStrip(pen, product, shades, ground);
    if (cell?.key !== i) continue;
    frameCell(pen, key, cell.dimension, ink);
    frameCell(pen, product, cell.dimension, ink);
  }
  const query = vectorOf(vectors.query, row.query, vectors.width);
  const strip = { numbers: query, left: 0, width, top: 1, height: TALL, scale: scales.vectors };
  const above = penOn(head.strip, width, TALL + 2);
  drawStrip(above, strip, shades, ground);
  if (cell) frameCell(above, strip, cell.dimension, ink);
}

/**
 * Scales of colour that hold for every query of a head, so that its pictures can be compared.
 *
 * @param {Vectors} vectors
 * @param {boolean} causal
 */
export function scalesOf(vectors, causal) {
  const { query, key, nQueries, nKeys, width, scale } = vectors;
  const steps = Math.min(24, Math.max(nQueries, nKeys));
  const products = new Float64Array(steps * steps * width);
  const scores = new Float64Array(steps * steps);
  for (let place = 0; place < scores.length; place += 1) {
    const q = Math.floor((Math.floor(place / steps) * nQueries) / steps);
    const k = Math.floor(((place % steps) * (causal ? q + 1 : nKeys)) / steps);
    const found = productsOf(vectors, q, k);
    products.set(found, place * width);
    scores[place] = found.reduce((sum, value) => sum + value, 0) * scale;
  }
  return { vectors: scaleFor(query, key), products: scaleFor(products), scores: scaleFor(scores) };
}

/**
 * Which rows of tokens are in sight.
 *
 * @typedef {object} Span  rows [first, end)
 * @property {number} first
 * @property {number} end
 */

/** The rows that touch a window. @param {Float64Array} tops @param {number} from @param {number} to @returns {Span} */
export function spanOf(tops, from, to) {
  const n = tops.length - 1;
  let first = 0;
  while (first < n && tops[first + 1] < from) first += 1;
  let end = first;
  while (end < n && tops[end] < to) end += 1;
  return { first, end };
}

const ROW = 20;
const TOP = 104;
const NAMES = 130;
const STRIP = 224;
const APART = 20;
const LEFT = 24;

/** @param {Example} example @param {Scene} scene @param {Look} look @returns {Figure} */
export function neuronFigure(example, scene, look) {
  const { loaded, row } = scene;
  const { vectors } = loaded;
  const dimensions = Array.from({ length: vectors.width }, (_, i) => i);
  return {
    name: "neuron",
    width: 2 * LEFT + NAMES + 2 * (STRIP + APART) + 150,
    height: TOP + vectors.nKeys * ROW + 24,
    paper: look.paper,
    paint(pen) {
      const title = `${name(example.tokens, row.query)} in layer ${loaded.layer}, head ${loaded.head}`;
      pen.text(LEFT, 34, title, { size: 17, color: look.ink, bold: true });
      paintHead(pen, scene, look);
      for (let i = 0; i < vectors.nKeys; i += 1) paintKey(pen, scene, i, name(example.keyTokens, i), look);
    },
    columns: ["key", "token", "score", "weight", ...dimensions.map((i) => `k_${i}`), ...dimensions.map((i) => `q_${i} k_${i}`)],
    *rows() {
      for (let i = 0; i < vectors.nKeys; i += 1) {
        const score = sees(row, i) ? row.scores[i] : "masked";
        const key = vectorOf(vectors.key, i, vectors.width);
        yield [i, example.keyTokens.text[i], score, row.weights[i], ...key, ...productsOf(vectors, row.query, i)];
      }
    },
  };
}

/** @param {Tokens} tokens @param {number} i */
function name(tokens, i) {
  const { mark, text } = tokenText(tokens, i, 14);
  return mark + text;
}

/**
 * @typedef {CssColors} Look
 *
 * @param {Pen} pen
 * @param {Scene} scene
 * @param {Look} look
 */
function paintHead(pen, { loaded: { vectors, scales }, row, theme }, look) {
  const style = { size: 12, color: look.soft };
  const left = LEFT + NAMES;
  pen.text(LEFT, 62, "where it looks", style);
  pen.text(left, 62, "q above each k", style);
  pen.text(left + STRIP + APART, 62, "q × k", style);
  pen.text(left + 2 * (STRIP + APART) + 60, 62, "score", { ...style, anchor: "end" });
  pen.text(left + 2 * (STRIP + APART) + 140, 62, "softmax", { ...style, anchor: "end" });
  const query = vectorOf(vectors.query, row.query, vectors.width);
  pen.image(left, 74, STRIP, ROW - 4, cellsOf(query, scales.vectors, theme, look.ground));
}

/** @param {Pen} pen @param {Scene} scene @param {number} i @param {string} named @param {Look} look */
function paintKey(pen, { loaded: { vectors, scales }, row, theme }, i, named, look) {
  const top = TOP + i * ROW;
  const left = LEFT + NAMES;
  const masked = !sees(row, i);
  const style = { size: 12, color: masked ? look.soft : look.ink };
  pen.text(LEFT, top + 13, named, style);
  const key = vectorOf(vectors.key, i, vectors.width);
  pen.image(left, top, STRIP, ROW - 4, cellsOf(key, scales.vectors, theme, look.ground));
  const products = productsOf(vectors, row.query, i);
  pen.image(left + STRIP + APART, top, STRIP, ROW - 4, cellsOf(products, scales.products, theme, look.ground));
  const numbers = left + 2 * (STRIP + APART);
  pen.text(numbers + 60, top + 13, masked ? "masked" : written(row.scores[i], 2), { ...style, anchor: "end" });
  pen.text(numbers + 140, top + 13, masked ? "–" : share(row.weights[i]), { ...style, anchor: "end" });
}

/**
 * A strip of one pixel a cell.
 *
 * @param {ArrayLike<number>} numbers
 * @param {number} scale
 * @param {"light" | "dark"} theme
 * @param {string} ground
 */
function cellsOf(numbers, scale, theme, ground) {
  const canvas = element("canvas", { width: String(numbers.length), height: "1" });
  const pen = penOf(canvas);
  pen.fillStyle = ground;
  pen.fillRect(0, 0, numbers.length, 1);
  const shades = shadeTable(theme);
  for (let i = 0; i < numbers.length; i += 1) {
    pen.fillStyle = shades[shadeIndex(numbers[i], scale)];
    pen.fillRect(i, 0, 1, 1);
  }
  return canvas;
}
