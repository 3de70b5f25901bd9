/**
 * A picture to take away: painted with a pen, so that the same strokes become PNG or SVG, with
 * its numbers as a table.
 *
 * @typedef {object} Pen  coordinates in CSS pixels, y downwards; colours as #rrggbb
 * @property {(x: number, y: number, width: number, height: number, color: string, alpha?: number) => void} rect
 * @property {(x0: number, y0: number, x1: number, y1: number, color: string, width: number, alpha?: number) => void} curve
 *   bends as the lines of the head view do
 * @property {(x: number, y: number, text: string, style: TextStyle) => void} text  y is the line that
 *   letters stand on; any text may be given, the pen makes every character of it visible
 * @property {(x: number, y: number, width: number, height: number, image: HTMLCanvasElement) => void} image
 *   cells stay sharp when enlarged
 *
 * @typedef {{size: number, color: string, anchor?: "start" | "middle" | "end", bold?: boolean, angle?: number}} TextStyle
 *   angle: degrees, clockwise, around (x, y)
 *
 * @typedef {object} Figure
 * @property {string} name  of the file, without an ending
 * @property {number} width
 * @property {number} height
 * @property {string} paper  the background's colour
 * @property {(pen: Pen) => void} paint
 * @property {string[]} columns  of the table
 * @property {() => Iterable<(string | number)[]>} rows  texts as they are: the table makes them safe
 */
import { visible } from "../text/text.js";

/** As theme.css has it; a file is read where only the fonts of its reader are. */
export const FONTS =
  "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, sans-serif";

/** How far the bends of a curve lie from its ends, in parts of its width. */
export const BEND = 0.4;
/** CSS pixels between two pictures. */
const BETWEEN = 32;

/**
 * One figure of several that are looked at together.
 *
 * @param {Figure[]} figures  at least one
 * @param {string[]} names  what tells them apart
 * @returns {Figure}
 */
export function sideBySide(figures, names) {
  if (figures.length === 1) return figures[0];
  const starts = figures.map((_, i) => figures.slice(0, i).reduce((sum, { width }) => sum + width + BETWEEN, 0));
  const last = figures.length - 1;
  return {
    ...figures[0],
    width: starts[last] + figures[last].width,
    height: Math.max(...figures.map(({ height }) => height)),
    paint: (pen) => figures.forEach((figure, i) => figure.paint(moved(pen, starts[i]))),
    columns: ["text", ...figures[0].columns],
    *rows() {
      for (const [i, figure] of figures.entries()) {
        for (const row of figure.rows()) yield [names[i], ...row];
      }
    },
  };
}

/** A pen whose strokes lie elsewhere. @param {Pen} pen @param {number} across @param {number} [down] @returns {Pen} */
export function moved(pen, across, down = 0) {
  return {
    rect: (x, y, ...rest) => pen.rect(x + across, y + down, ...rest),
    curve: (x0, y0, x1, y1, ...rest) => pen.curve(x0 + across, y0 + down, x1 + across, y1 + down, ...rest),
    text: (x, y, ...rest) => pen.text(x + across, y + down, ...rest),
    image: (x, y, ...rest) => pen.image(x + across, y + down, ...rest),
  };
}

/**
 * A figure's numbers as CSV (RFC 4180): commas, lines that end in CR LF, texts in quotes.
 *
 * Tokens come from outside, and a spreadsheet takes a cell that begins with = + - @ for a
 * formula. Such a sign, and an apostrophe in its place, gets an apostrophe before it; also behind
 * a ; or tab, since a spreadsheet may be set to end cells there. Taking one apostrophe away from
 * each such place gives the text back. Only NUL, other control characters and lone surrogates,
 * which a text file cannot hold, are written as the page shows them: ␀, ⟨U+D800⟩.
 */

const FORMULA = /(^|[;,|\t\r\n])([ \u00a0\t\r\n]*)(?=['=+\-@＝＋－＠])/g;
const UNWRITABLE = /[^\P{Cc}\t\r\n]|\p{Cs}/gu;
/** Cells of a text that is handed on at once. */
const PORTION = 4096;

/** @param {string | number} value */
export function cell(value) {
  // Nine digits tell any two numbers in single precision apart.
  if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(9))) : "";
  const writable = value.replace(UNWRITABLE, (one) => visible(one));
  return `"${writable.replace(FORMULA, "$1$2'").replaceAll('"', '""')}"`;
}

/** The table in portions, so that a long one is nowhere one text. @param {Figure} figure @returns {string[]} */
export function toCsv({ columns, rows }) {
  const portions = [];
  let lines = [line(columns)];
  for (const row of rows()) {
    lines.push(line(row));
    if (lines.length === PORTION) {
      portions.push(lines.join(""));
      lines = [];
    }
  }
  return [...portions, lines.join("")];
}

/** @param {(string | number)[]} row */
function line(row) {
  return `${row.map(cell).join(",")}\r\n`;
}
