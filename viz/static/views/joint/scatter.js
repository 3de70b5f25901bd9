/** Points of queries and keys on a canvas: where they stand, which is pointed at, how they are coloured. */

import { penOn } from "../../core/draw/canvas.js";
import { channels, PALETTES, withAlpha } from "../../core/draw/colors.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { signColor } from "../../core/draw/sign_colors.js";

/**
 * @typedef {"light" | "dark"} Theme
 * @typedef {"side" | "position" | "token"} Tint
 *
 * @typedef {object} Point
 * @property {"query" | "key"} side
 * @property {number} token  among all tokens
 * @property {number} text
 * @property {number} index  in its text
 * @property {number} x  0 to 1
 * @property {number} y
 *
 * @typedef {object} Scene
 * @property {Point[]} points
 * @property {(point: Point) => string} color
 * @property {Point | null} pointed
 * @property {{to: Point, weight: number}[]} lines  from the one that is pointed at
 * @property {number} own  the text of the page; its points have a ring
 * @property {Theme} theme
 */

/** CSS pixels. */
const [MARGIN, SIZE, NEAR] = [14, 3.2, 14];
/** Colours of queries and of keys, in the palette of heads: far apart for every eye. */
const SIDES = { light: [2, 7], dark: [2, 8] };

/** Kinds of tokens, each with the number of its colour. */
export const KINDS = [
  { id: "word", label: "word", color: 0 },
  { id: "piece", label: "piece of a word", color: 1 },
  { id: "mark", label: "punctuation", color: 5 },
  { id: "special", label: "special token", color: 3 },
];

/**
 * @param {import("../../core/data/data.js").Tokens} tokens
 * @param {number} i
 */
export function kindOf({ text, special, piece }, i) {
  if (special[i]) return "special";
  if (piece[i]) return "piece";
  return /[\p{L}\p{N}]/u.test(text[i]) ? "word" : "mark";
}

/**
 * @param {"query" | "key"} side
 * @param {Theme} theme
 */
export function sideColor(side, theme) {
  return PALETTES[theme][SIDES[theme][side === "query" ? 0 : 1]];
}

/**
 * @param {string} kind
 * @param {Theme} theme
 */
export function kindColor(kind, theme) {
  return PALETTES[theme][KINDS.find(({ id }) => id === kind)?.color ?? 0];
}

/**
 * From the first position to the last: orange over grey to blue.
 *
 * @param {number} part  0 to 1
 * @param {Theme} theme
 */
export function positionColor(part, theme) {
  const [low, high] = [signColor(-1, theme), signColor(1, theme)].map(channels);
  const mixed = low.map((value, i) => Math.round(value + (high[i] - value) * part));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {Scene} scene
 */
export function drawScatter(canvas, width, height, { points, color, pointed, lines, own, theme }) {
  const { ink, soft } = cssColors(canvas);
  const pen = penOn(canvas, width, height);
  const at = (/** @type {Point} */ point) => placeOf(point, width, height);
  for (const point of points) mark(pen, at(point), point.side, color(point), SIZE, pointed && point.text !== pointed.text ? 0.18 : 0.75);
  for (const point of points.filter(({ text }) => text === own)) {
    const [x, y] = at(point);
    pen.strokeStyle = withAlpha(theme === "dark" ? "#ffffff" : "#000000", 0.5);
    pen.lineWidth = 1;
    pen.beginPath();
    pen.arc(x, y, SIZE + 2, 0, 2 * Math.PI);
    pen.stroke();
  }
  if (!pointed) return;
  const [fromX, fromY] = at(pointed);
  for (const { to, weight } of lines) {
    const [x, y] = at(to);
    pen.strokeStyle = soft;
    pen.globalAlpha = Math.sqrt(weight);
    pen.lineWidth = 0.5 + 2.5 * weight;
    pen.beginPath();
    pen.moveTo(fromX, fromY);
    pen.lineTo(x, y);
    pen.stroke();
    pen.globalAlpha = 1;
    mark(pen, [x, y], to.side, color(to), SIZE + 1, 1);
  }
  mark(pen, [fromX, fromY], pointed.side, color(pointed), SIZE + 2.5, 1);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.arc(fromX, fromY, SIZE + 4.5, 0, 2 * Math.PI);
  pen.stroke();
}

/**
 * A query is a disc, a key a diamond.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {[number, number]} place
 * @param {"query" | "key"} side
 * @param {string} color
 * @param {number} size
 * @param {number} alpha
 */
function mark(pen, [x, y], side, color, size, alpha) {
  pen.fillStyle = withAlpha(color, alpha);
  pen.beginPath();
  if (side === "query") pen.arc(x, y, size, 0, 2 * Math.PI);
  else {
    const far = size * 1.35;
    pen.moveTo(x, y - far);
    pen.lineTo(x + far, y);
    pen.lineTo(x, y + far);
    pen.lineTo(x - far, y);
    pen.closePath();
  }
  pen.fill();
}

/**
 * @param {Point} point
 * @param {number} width
 * @param {number} height
 * @returns {[number, number]}
 */
export function placeOf({ x, y }, width, height) {
  return [MARGIN + x * (width - 2 * MARGIN), MARGIN + (1 - y) * (height - 2 * MARGIN)];
}

/**
 * The point nearest to a place, if one is near.
 *
 * @param {Point[]} points
 * @param {[number, number]} place
 * @param {number} width
 * @param {number} height
 */
export function nearestPoint(points, [x, y], width, height) {
  /** @type {Point | null} */
  let found = null;
  let best = NEAR ** 2;
  for (const point of points) {
    const [px, py] = placeOf(point, width, height);
    const apart = (px - x) ** 2 + (py - y) ** 2;
    if (apart > best) continue;
    best = apart;
    found = point;
  }
  return found;
}
