/**
 * A number worked out as a figure to take away: its steps line by line, and all terms as a table.
 *
 * @import { Figure } from "../../core/export/figure.js"
 * @import { Step } from "./worked.js"
 */

import { signColor } from "../../core/draw/colors.js";
import { signed, written } from "../../core/text/numbers.js";
import { largest, total } from "./worked.js";

const [WIDTH, LEFT, TOP, LINE, LISTED] = [720, 32, 64, 22, 8];
/** Where factors and values end, and where bars begin. */
const [FACTORS, VALUE, BARS] = [[330, 420], 520, 540];

/**
 * @typedef {object} Row  of the picture
 * @property {string} text
 * @property {"title" | "term" | "line"} kind
 * @property {number[]} [factors]
 * @property {number} [value]
 * @property {number} [part]  of the largest term of its sum
 */

/**
 * @param {object} given
 * @param {string} given.title
 * @param {Step[]} given.steps
 * @param {"light" | "dark"} given.theme
 * @param {ReturnType<typeof import("../../core/draw/canvas.js").cssColors>} colors
 * @returns {Figure}
 */
export function workedFigure({ title, steps, theme }, { ink, soft, paper }) {
  const rows = steps.flatMap(rowsOf);
  return {
    name: "arithmetic",
    width: WIDTH,
    height: TOP + LINE * rows.length + 24,
    paper,
    paint(pen) {
      pen.text(LEFT, 36, title, { size: 20, color: ink, bold: true });
      rows.forEach(({ text, kind, factors = [], value, part = 0 }, i) => {
        const y = TOP + LINE * (i + 1);
        pen.text(LEFT, y, text, { size: 14, color: kind === "term" ? soft : ink, bold: kind === "title" });
        if (value === undefined) return;
        factors.forEach((factor, n) => pen.text(FACTORS[n], y, written(factor), { size: 14, color: soft, anchor: "end" }));
        pen.text(VALUE, y, signed(value), { size: 14, color: ink, anchor: "end" });
        pen.rect(BARS, y - 10, Math.abs(part) * (WIDTH - LEFT - BARS), 9, signColor(value, theme));
      });
    },
    columns: ["step", "term", "factor", "factor", "value"],
    *rows() {
      for (const { title: step, sum, value } of steps) {
        for (const { name, factors, value: own } of sum?.terms ?? []) yield [step, name, factors[0] ?? "", factors[1] ?? "", own];
        if (Number.isFinite(value)) yield [step, "", "", "", value];
      }
    },
  };
}

/**
 * @param {Step} step
 * @param {number} i
 * @returns {Row[]}
 */
function rowsOf({ title, sum, lines }, i) {
  /** @type {Row[]} */
  const rows = [{ text: `${i + 1}  ${title}`, kind: "title" }];
  if (sum) {
    const { shown, rest } = largest(sum.terms, LISTED);
    const top = Math.max(...[...shown, ...(rest ? [rest] : [])].map(({ value }) => Math.abs(value))) || 1;
    for (const { name, factors, value } of shown) rows.push({ text: name, kind: "term", factors, value, part: value / top });
    if (rest) rows.push({ text: `… and ${rest.count} more`, kind: "term", value: rest.value, part: rest.value / top });
    rows.push({ text: "sum", kind: "term", value: total(sum.terms.map(({ value }) => value)) });
  }
  const plain = (/** @type {string | number} */ part) => (typeof part === "string" ? part.replaceAll("_", "") : written(part));
  return [...rows, ...lines.map((line) => /** @type {Row} */ ({ text: line.map(plain).join(""), kind: "line" }))];
}
