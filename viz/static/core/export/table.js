/**
 * A figure's numbers as CSV (RFC 4180): commas, lines that end in CR LF, texts in quotes.
 *
 * Tokens come from outside, and a spreadsheet takes a cell that begins with = + - @ for a
 * formula. Such a sign, and an apostrophe in its place, gets an apostrophe before it; also behind
 * a ; or tab, since a spreadsheet may be set to end cells there. Taking one apostrophe away from
 * each such place gives the text back. Only NUL, other control characters and lone surrogates,
 * which a text file cannot hold, are written as the page shows them: ␀, ⟨U+D800⟩.
 */

import { visible } from "../text/text.js";

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

/**
 * The table in portions, so that a long one is nowhere one text.
 *
 * @param {import("./figure.js").Figure} figure
 * @returns {string[]}
 */
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
