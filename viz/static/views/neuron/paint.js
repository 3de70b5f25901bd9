/**
 * What the neuron view draws: numbers beside tokens, the lines of one query, strips of cells.
 *
 * @typedef {import("../../core/data/example.js").Vectors} Vectors
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
 * @property {import("../../core/data/steps.js").Row} row
 * @property {number} key
 * @property {"light" | "dark"} theme
 * @property {import("./rows.js").Span} span  keys in sight
 * @property {number} top  where the drawn window begins
 * @property {number} height
 * @property {Cell | null} cell
 */

import { productsOf, sees, vectorOf } from "../../core/data/steps.js";
import { penOn } from "../../core/draw/canvas.js";
import { headColor } from "../../core/draw/colors.js";
import { signedShade, weightShade } from "../../core/draw/contrast.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { scaleFor, shadeTable } from "../../core/draw/sign_colors.js";
import { share, written } from "../../core/text/numbers.js";
import { drawStrip, frameCell } from "../../marks/strips.js";
import { drawFan } from "./fan.js";

/** Height of the query's strip. */
const TALL = 18;
/** How strong masked keys are drawn. */
const MASKED = 0.22;

/**
 * Scores and weights in numbers.
 *
 * @param {import("../../marks/rows.js").Rows} keys
 * @param {Scene} scene
 */
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

/**
 * @param {import("./frame.js").NeuronFrame} frame
 * @param {Scene} scene
 * @param {{query: Float64Array, key: Float64Array}} tops
 */
export function drawLines(frame, { loaded, row, top, height, theme }, tops) {
  const width = frame.between.clientWidth;
  const pen = penOn(frame.lines, width, height);
  frame.lines.style.top = `${top}px`;
  const middles = tops.key.map((y) => y + frame.row / 2 - top);
  const from = tops.query[row.query] + frame.row / 2 - top;
  const color = headColor(loaded.head, theme);
  const count = drawFan(pen, { width, from, middles, weights: row.weights, height }, color);
  frame.lines.dataset.lines = String(count);
}

/**
 * @param {import("./frame.js").NeuronFrame} frame
 * @param {Scene} scene
 * @param {Float64Array} tops  of the keys
 */
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
