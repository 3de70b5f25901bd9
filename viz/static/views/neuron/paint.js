/**
 * The scales of a head's colours, and the neuron view as a figure to take away.
 *
 * @typedef {object} Loaded  the head that is shown
 * @property {number} layer
 * @property {number} head
 * @property {Vectors} vectors
 * @property {{vectors: number, products: number, scores: number}} scales
 *
 * @typedef {object} Scene
 * @property {Loaded} loaded
 * @property {Row} row
 * @property {number} key
 * @property {"light" | "dark"} theme
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example, Vectors } from "../../core/data/example.js"
 * @import { Row } from "../../core/data/softmax.js"
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 */

import { productsOf, sees, vectorOf } from "../../core/data/softmax.js";
import { penOf } from "../../core/draw/canvas.js";
import { scaleFor, shadeIndex, shadeTable } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { share, written } from "../../core/text/numbers.js";
import { tokenText } from "../../core/text/text.js";

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
