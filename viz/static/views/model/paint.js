/** The small pictures and their numbers, on canvases a few rows high. */

import { STATISTICS, written } from "../../core/data/statistics.js";
import { penOf } from "../../core/draw/canvas.js";
import { headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { cornerOf, heightOf } from "../../marks/grid.js";
import { brackets } from "./brackets.js";
import { inksOf, thumbPainter } from "./inks.js";

/** CSS pixels: a canvas as tall as a large model would be past what some browsers allow. */
const TILE = 800;
/** How strong pictures are that are not marked. */
const FADED = 0.3;

/**
 * @typedef {object} Marks
 * @property {boolean} any  whether heads are marked at all
 * @property {(place: number) => boolean} has  whether this one is
 * @property {(place: number) => number} score  a share; NaN: there is none
 *
 * @typedef {object} Board
 * @property {import("../../core/data/example.js").Example} example
 * @property {import("../../core/data/example.js").Thumbnails} thumbnails
 * @property {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @property {import("../../marks/grid.js").Grid} grid
 * @property {import("../../core/data/measures.js").Measures} measures
 * @property {Marks} marks
 * @property {string} sort
 * @property {"light" | "dark"} theme
 * @property {string} ink
 * @property {string} soft
 * @property {string} faint
 * @property {string} paper
 * @property {string} ground
 * @property {string} font
 */

/**
 * @param {HTMLElement} host
 * @param {Board} board
 */
export function paintTiles(host, board) {
  const { grid } = board;
  const scale = devicePixelRatio || 1;
  const perTile = Math.max(1, Math.floor(TILE / grid.drop));
  const inks = board.example.heads.map((head) => inksFor(board, head));
  const paint = thumbPainter(board.thumbnails, board.sizes, Math.round(grid.side * scale));
  const canvases = [];
  for (let first = 0; first < grid.rows; first += perTile) {
    const last = Math.min(first + perTile, grid.rows);
    const top = first === 0 ? 0 : grid.top + first * grid.drop;
    const bottom = last === grid.rows ? heightOf(grid) : grid.top + last * grid.drop;
    const canvas = /** @type {HTMLCanvasElement} */ (host.children[canvases.length] ?? element("canvas"));
    fit(canvas, grid.left + grid.columns * grid.pitch, bottom - top, scale);
    canvas.style.top = `${top}px`;
    const slots = [first * grid.columns, Math.min(last * grid.columns, grid.places.length)];
    paintTile(canvas, board, { top, slots, scale, inks, paint });
    canvases.push(canvas);
  }
  host.replaceChildren(...canvases);
}

/**
 * @param {Board} board
 * @param {number} head
 */
function inksFor({ theme, ground, paper, marks }, head) {
  const color = headColor(head, theme);
  const strong = inksOf(color, ground, paper, 1);
  return { strong, faded: marks.any ? inksOf(color, ground, paper, FADED) : strong };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {number} scale
 */
function fit(canvas, width, height, scale) {
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Board} board
 * @param {{top: number, slots: number[], scale: number,
 *   inks: {strong: Uint32Array, faded: Uint32Array}[], paint: ReturnType<typeof thumbPainter>}} tile
 */
function paintTile(canvas, board, { top, slots, scale, inks, paint }) {
  const { grid, marks } = board;
  const pen = penOf(canvas);
  const image = pen.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let slot = slots[0]; slot < slots[1]; slot += 1) {
    const place = grid.places[slot];
    const [x, y] = cornerOf(grid, slot);
    const corner = Math.round((y - top) * scale) * canvas.width + Math.round(x * scale);
    const { strong, faded } = inks[place % inks.length];
    paint(pixels, canvas.width, corner, place, marks.has(place) ? strong : faded);
  }
  pen.putImageData(image, 0, 0);
  pen.setTransform(scale, 0, 0, scale, 0, -top * scale);
  if (grid.named) writeNames(pen, board, slots);
  else writeEdges(pen, board, slots, top === 0);
  if (!grid.named && marks.any) writeScores(pen, board, slots);
}

/**
 * Numbers of layers to the left, of heads above with a stroke of their colour.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {Board} board
 * @param {number[]} slots
 * @param {boolean} above
 */
function writeEdges(pen, { grid, example, theme, soft, faint, font }, slots, above) {
  const { columns, side, pitch, left, top } = grid;
  pen.font = `12px ${font}`;
  pen.fillStyle = soft;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let slot = slots[0]; slot < slots[1]; slot += columns) {
    const [x, y] = cornerOf(grid, slot);
    pen.fillText(String(example.layers[slot / columns]), x - 9, y + side / 2);
  }
  if (!above) return;
  pen.textAlign = "left";
  pen.font = `10px ${font}`;
  pen.fillStyle = faint;
  pen.fillText("head", 0, 9);
  pen.fillText("layer", 0, 21);
  pen.font = `12px ${font}`;
  pen.textAlign = "center";
  const step = pitch < 18 ? 2 : 1;
  example.heads.forEach((head, i) => {
    const middle = left + i * pitch + side / 2;
    pen.fillStyle = soft;
    if (i % step === 0) pen.fillText(String(head), middle, 9);
    pen.fillStyle = headColor(head, theme);
    pen.fillRect(left + i * pitch, top - 8, side, 3);
  });
  pen.fillStyle = soft;
  for (const { x, width } of brackets(example, { left, pitch, side })) pen.fillRect(x, top - 4, width, 1.5);
}

/**
 * Below a picture that does not stand in its row: its layer and head, and what it is sorted by.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {Board} board
 * @param {number[]} slots
 */
function writeNames(pen, { grid, example, measures, sort, ink, soft, font }, slots) {
  const statistic = STATISTICS.find(({ id }) => id === sort);
  pen.textBaseline = "middle";
  for (let slot = slots[0]; slot < slots[1]; slot += 1) {
    const place = grid.places[slot];
    const [x, y] = cornerOf(grid, slot);
    const name = `${example.layers[Math.floor(place / example.heads.length)]}-${example.heads[place % example.heads.length]}`;
    pen.textAlign = "left";
    pen.font = `11px ${font}`;
    pen.fillStyle = ink;
    pen.fillText(name, x, y + grid.side + 9);
    if (!statistic) continue;
    const text = shortened(statistic, measures.of(place, sort));
    pen.textAlign = "right";
    pen.fillStyle = soft;
    pen.font = `10px ${font}`;
    pen.fillText(text, x + grid.side, y + grid.side + 9);
  }
}

/**
 * The score of each marked head, in the corner of its picture.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {Board} board
 * @param {number[]} slots
 */
function writeScores(pen, { grid, marks, paper, ink, font }, slots) {
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.font = `600 11px ${font}`;
  for (let slot = slots[0]; slot < slots[1]; slot += 1) {
    const place = grid.places[slot];
    if (!marks.has(place)) continue;
    const [x, y] = cornerOf(grid, slot);
    pen.strokeStyle = ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(x - 0.75, y - 0.75, grid.side + 1.5, grid.side + 1.5);
    const score = marks.score(place);
    if (grid.side < 34 || Number.isNaN(score)) continue;
    const text = percent(score);
    const width = pen.measureText(text).width + 6;
    pen.fillStyle = paper;
    pen.fillRect(x + grid.side - width, y, width, 15);
    pen.fillStyle = ink;
    pen.fillText(text, x + grid.side - 3, y + 8);
  }
}

/**
 * @param {import("../../core/data/statistics.js").Statistic} statistic
 * @param {number} value
 */
function shortened(statistic, value) {
  return statistic.unit === "share" && !Number.isNaN(value)
    ? percent(value)
    : written(statistic, value).replace("\u202fnats", "");
}

/** @param {number} share */
function percent(share) {
  return `${Math.round(share * 100)}\u202f%`;
}
