/**
 * Attention as lines between two columns.
 *
 * @typedef {object} Geometry  in CSS pixels from the top of the tokens
 * @property {number} width  between the columns
 * @property {number} height
 * @property {Record<Side, Float64Array>} middles  of each token, its height
 * @property {number} row  the height of a token
 *
 * @typedef {object} Look
 * @property {number[]} numbers  the number in the model of each place in the head axis
 * @property {"light" | "dark"} theme
 * @property {number} strength
 *
 * @typedef {object} Drawing
 * @property {Layer} layer
 * @property {Uint32Array} places  the lines, the front one first, from `gatherLines`
 * @property {number[]} heads  the places in the head axis that are on
 * @property {number} bright  how many of them are not faded
 * @property {Geometry} geometry
 * @property {Look} look
 *
 * @import { Side } from "../../core/data/attention.js"
 * @import { Layer } from "../../core/data/example.js"
 * @import { Pen } from "../../core/export/figure.js"
 */

import { lineAlpha, weightOf } from "../../core/data/attention.js";
import { headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { moved } from "../../core/export/figure.js";
import { screenPen } from "../../core/export/pens.js";

/** CSS pixels between the lines of neighbouring heads, and the part of a row they fill at most. */
const MOST_APART = 3;
const SPREAD = 0.6;
/** Of more lines the strongest are drawn: nobody could tell the others apart. */
export const MOST_LINES = 1500;
/** How much is left of a faded line. */
const FADED = 0.2;

/**
 * How far the lines of each head stand off the middle of a token: side by side, so that heads
 * with the same weight can be told apart.
 *
 * @param {Drawing} drawing
 * @returns {Float64Array}  CSS pixels, by place in the head axis
 */
export function lineOffsets({ heads, geometry, look }) {
  const step = Math.min(MOST_APART, (geometry.row * SPREAD) / heads.length);
  const apart = new Float64Array(look.numbers.length);
  heads.forEach((head, i) => {
    apart[head] = (i - (heads.length - 1) / 2) * step;
  });
  return apart;
}

/** In CSS pixels. Browsers stroke what is at most one pixel wide, here the lines up to 0.2, three times as fast. @param {number} weight */
export function lineWidth(weight) {
  return Math.max(1, 0.5 + 2.5 * weight);
}

/**
 * The heights at which a line begins and ends, by its place; and its head.
 *
 * @param {Drawing} drawing
 * @returns {(place: number) => {head: number, from: number, to: number}}
 */
function ends(drawing) {
  const { layer: { nQueries, nKeys }, geometry: { middles } } = drawing;
  const apart = lineOffsets(drawing);
  return (place) => {
    const row = Math.floor(place / nKeys);
    const head = Math.floor(row / nQueries);
    return { head, from: middles.query[row % nQueries] + apart[head], to: middles.key[place % nKeys] + apart[head] };
  };
}

/**
 * Paints the lines that are seen between two heights, the strongest last, in front.
 *
 * @param {Pen} pen
 * @param {Drawing} drawing
 * @param {{top: number, bottom: number}} [seen]
 */
export function paintLines(pen, drawing, { top, bottom } = { top: -Infinity, bottom: Infinity }) {
  const { layer, bright, geometry, look } = drawing;
  const places = drawing.places.subarray(0, MOST_LINES);
  const endsOf = ends(drawing);
  const colors = look.numbers.map((number) => headColor(number, look.theme));
  for (let i = places.length - 1; i >= 0; i -= 1) {
    const { head, from, to } = endsOf(places[i]);
    const weight = weightOf(layer.codes[places[i]]);
    const width = lineWidth(weight);
    if (Math.max(from, to) < top - width || Math.min(from, to) > bottom + width) continue;
    pen.curve(0, from, geometry.width, to, colors[head], width, lineAlpha(weight, look.strength) * (i < bright ? 1 : FADED));
  }
}

/** Above the lines of a picture to take away: which colour is which head. @param {Pen} pen @param {Drawing} drawing */
export function paintKey(pen, { heads, geometry: { width }, look: { numbers, theme } }) {
  const step = Math.min(20, width / heads.length);
  heads.forEach((head, i) => {
    const x = width / 2 + (i - (heads.length - 1) / 2) * step;
    const color = headColor(numbers[head], theme);
    pen.rect(x - step / 2 + 1, -30, step - 2, 3, color);
    if (step >= 14) pen.text(x, -12, String(numbers[head]), { size: 11, color, anchor: "middle" });
  });
}

/** CSS pixels of a tile: a canvas as tall as a long text would be past what browsers allow. */
const TILE = 640;
/** CSS pixels around the window in which tiles are painted at once, and tiles of a sheet that is painted whole. */
const NEAR = 320;
const WHOLE = 16;
/** Milliseconds until what is not near the window is painted, so that a picture of the whole page has it. */
const PAUSE = 100;

/** A sheet of lines as tall as the text, in tiles: those near the window are painted first. */
export class Sheet {
  /** @param {string} name @param {AbortSignal} ended */
  constructor(name, ended) {
    this.root = element("div", { class: `sheet ${name}` });
    this.tiles = /** @type {{canvas: HTMLCanvasElement, top: number, painted: boolean}[]} */ ([]);
    this.drawing = /** @type {Drawing | null} */ (null);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    addEventListener("beforeprint", () => this.work(Infinity), { signal: ended });
    // While it is captured: pages also lie in parts of a window that scroll by themselves.
    for (const type of ["scroll", "resize"]) addEventListener(type, () => this.work(), { passive: true, capture: true, signal: ended });
  }

  /** Shows a drawing instead of the one that is there; null for an empty sheet. @param {Drawing | null} drawing */
  draw(drawing) {
    this.drawing = drawing;
    this.root.dataset.lines = String(Math.min(drawing?.places.length ?? 0, MOST_LINES));
    delete this.root.dataset.drawn;
    this.root.hidden = drawing === null;
    if (!drawing) return;
    const count = Math.ceil(drawing.geometry.height / TILE);
    while (this.tiles.length < count) {
      const canvas = element("canvas");
      const top = this.tiles.length * TILE;
      canvas.style.top = `${top}px`;
      this.tiles.push({ canvas, top, painted: false });
    }
    this.tiles.length = count;
    this.root.replaceChildren(...this.tiles.map(({ canvas }) => canvas));
    for (const tile of this.tiles) tile.painted = false;
    this.work();
  }

  /** Paints the tiles that are not painted yet; on paper all. @param {number} [around]  CSS pixels around the window */
  work(around = matchMedia("print").matches ? Infinity : NEAR) {
    clearTimeout(this.timer);
    const { drawing } = this;
    if (!drawing || !this.root.isConnected) return;
    const { width, height } = drawing.geometry;
    const { top: above } = this.root.getBoundingClientRect();
    for (const tile of this.tiles) {
      const { top } = tile;
      const bottom = Math.min(top + TILE, height);
      if (tile.painted || above + bottom < -around || above + top > innerHeight + around) continue;
      paintLines(moved(screenPen(tile.canvas, width, bottom - top), 0, -top), drawing, { top, bottom });
      tile.painted = true;
    }
    this.root.dataset.drawn = "true";
    if (this.tiles.length <= WHOLE && this.tiles.some(({ painted }) => !painted)) this.timer = setTimeout(() => this.work(Infinity), PAUSE);
  }
}
