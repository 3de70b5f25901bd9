/**
 * The arithmetic of one weight as a figure to take away: the products as bars, and the sum.
 *
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Story } from "./story.js"
 */

import { dimensions, sees, sumsOf } from "../../core/data/softmax.js";
import { signColor } from "../../core/draw/colors.js";
import { share, written } from "../../core/text/numbers.js";
import { tokenName } from "../../core/text/text.js";
import { axisOf } from "./bars.js";

const WIDTH = 720;
const LEFT = 32;
const TOP = 84;
const TALL = 160;

/**
 * @param {Story} story
 * @param {ReturnType<typeof import("../../core/draw/canvas.js").cssColors>} colors
 * @returns {Figure}
 */
export function arithmeticFigure(story, { ink, soft, paper }) {
  const { example, vectors, row, key, products } = story;
  const names = [tokenName(example.tokens, row.query), tokenName(example.keyTokens, key)];
  const { width } = vectors;
  return {
    name: "arithmetic",
    width: WIDTH,
    height: TOP + TALL + 148,
    paper,
    paint(pen) {
      pen.text(LEFT, 34, `${names[0]} looks at ${names[1]} with ${share(row.weights[key])}`, { size: 20, color: ink, bold: true });
      pen.text(LEFT, 58, `${story.where}: ${width} products of query and key`, { size: 13, color: soft });
      paintBars(pen, story, soft);
      lines(story).forEach((line, i) => pen.text(LEFT, TOP + TALL + 40 + 26 * i, line, { size: 15, color: ink }));
    },
    columns: ["dimension", "query", "key", "product"],
    *rows() {
      for (let i = 0; i < width; i += 1) {
        yield [i, vectors.query[row.query * width + i], vectors.key[key * width + i], products[i]];
      }
    },
  };
}

/**
 * @param {Pen} pen
 * @param {Story} story
 * @param {string} soft
 */
function paintBars(pen, { products, order, theme }, soft) {
  const { zero, perUnit } = axisOf(products, TALL);
  const cell = (WIDTH - 2 * LEFT) / products.length;
  dimensions(products, order).forEach((dimension, i) => {
    const value = products[dimension];
    const top = TOP + zero - Math.max(value, 0) * perUnit;
    pen.rect(LEFT + i * cell + 0.5, top, cell - 1, Math.abs(value) * perUnit, signColor(value, theme));
  });
  pen.line(LEFT, TOP + zero, WIDTH - LEFT, TOP + zero, soft, 1);
}

/** @param {Story} story */
function lines({ vectors, row, key, products }) {
  const score = written(row.scores[key]);
  const masked = !sees(row, key);
  const capped = vectors.softCap ? `, capped ${written(row.capped[key])}` : "";
  return [
    `q · k = ${written(sumsOf(products).all)}`,
    `score = q · k × ${written(vectors.scale, 4)} = ${score}${capped}${masked ? ", masked: −∞" : ""}`,
    `exp(score − ${written(row.capped[row.strongest])}) = ${written(row.exps[key])}`,
    `weight = ${written(row.exps[key])} / ${written(row.denominator)} = ${share(row.weights[key])}`,
  ];
}
