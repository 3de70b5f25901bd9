/**
 * A sheet of lines as tall as the text, in tiles: those in the window are drawn first, then those
 * near it, and of a sheet that is not very tall the others too, so that a picture of the whole page
 * has them. Tiles of a very tall one are drawn when they come near.
 */

import { penOf } from "../../core/draw/canvas.js";
import { element } from "../../core/draw/dom.js";
import { Raster } from "../../core/draw/raster.js";
import { lineAdder, SHARP } from "./lines.js";

/** CSS pixels. A canvas as tall as a long text would be past what browsers allow. */
const TILE = 640;
const NEAR = 320;
/** Milliseconds of drawing before what is there is shown and the browser may do something else. */
const SLICE = 80;
/** Milliseconds until what is near the window is drawn: what is in it is to be seen first. */
const PAUSE = 100;
/** Device pixels of a sheet that is drawn as a whole: 64 MB. */
const WHOLE = 16e6;
/** Milliseconds of drawing what nobody sees yet, at a time. */
const LITTLE = 16;
/** Of more lines than so many, the strongest are shown before all of them. */
const MANY = 10000;

/**
 * @typedef {object} Tile
 * @property {HTMLCanvasElement} canvas
 * @property {number} top  CSS pixels
 * @property {number} lines  how many of them it shows
 */

export class Sheet {
  /**
   * @param {string} name
   * @param {AbortSignal} ended
   */
  constructor(name, ended) {
    this.root = element("div", { class: `sheet ${name}` });
    this.raster = new Raster();
    /** @type {Tile[]} */
    this.tiles = [];
    /** @type {import("./lines.js").Drawing | null} */
    this.drawing = null;
    /** @type {{tile: Tile, lines: number} | null} */
    this.begun = null;
    this.whole = true;
    this.frame = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    // While it is captured: pages also lie in parts of a window that scroll by themselves.
    addEventListener("beforeprint", () => this.work(0, true), { signal: ended });
    for (const type of ["scroll", "resize"]) {
      addEventListener(type, () => this.later(), { passive: true, capture: true, signal: ended });
    }
  }

  /**
   * Shows a drawing instead of the one that is there; null for an empty sheet.
   *
   * @param {import("./lines.js").Drawing | null} drawing
   * @param {boolean} [whole]  false where a fuller one is about to follow
   */
  draw(drawing, whole = true) {
    this.drawing = drawing;
    this.whole = whole;
    this.begun = null;
    this.root.dataset.lines = String(drawing?.places.length ?? 0);
    delete this.root.dataset.drawn;
    this.root.hidden = drawing === null;
    if (!drawing) return;
    this.cut(drawing.geometry);
    this.work();
  }

  /** @param {import("./lines.js").Geometry} geometry */
  cut({ width, height }) {
    const scale = devicePixelRatio || 1;
    const columns = Math.max(1, Math.round(width * scale));
    while (this.tiles.length < Math.ceil(height / TILE)) {
      const canvas = element("canvas");
      const top = this.tiles.length * TILE;
      canvas.style.top = `${top}px`;
      this.root.append(canvas);
      this.tiles.push({ canvas, top, lines: -1 });
    }
    for (const tile of this.tiles) {
      const rows = Math.max(0, Math.round(Math.min(TILE, height - tile.top) * scale));
      tile.lines = -1;
      if (tile.canvas.width === columns && tile.canvas.height === rows) continue;
      tile.canvas.width = columns;
      tile.canvas.height = rows;
      tile.canvas.style.width = `${width}px`;
      tile.canvas.style.height = `${rows / scale}px`;
    }
  }

  later() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.work());
  }

  /**
   * Goes on when the browser has done what waits.
   *
   * @param {number} [around]  CSS pixels around the window
   * @param {number} [pause]  milliseconds
   */
  soon(around = 0, pause = 0) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.work(around), pause);
  }

  /**
   * Draws for one slice of time what is in the window, then what is near it; on paper, all at once.
   *
   * @param {number} [around]  CSS pixels around the window
   * @param {boolean} [all]
   */
  work(around = 0, all = matchMedia("print").matches) {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    const until = all ? Infinity : performance.now() + (around > NEAR ? LITTLE : SLICE);
    while (this.drawing && this.root.isConnected) {
      const tile = this.begun?.tile ?? this.wanted(all ? Infinity : around);
      if (!tile && this.whole) this.root.dataset.drawn = "true";
      if (!tile) return this.further(around);
      const { lines } = (this.begun ??= this.begin(tile, this.drawing));
      if (!this.raster.draw(until)) return this.soon(around);
      this.raster.show(penOf(tile.canvas));
      this.begun = null;
      tile.lines = lines;
      if (lines < this.drawing.places.length) return this.soon(around);
    }
  }

  /**
   * What is next when all around the window is drawn.
   *
   * @param {number} around
   */
  further(around) {
    if (around < NEAR) return this.soon(NEAR, PAUSE);
    const pixels = this.tiles.reduce((sum, { canvas }) => sum + canvas.width * canvas.height, 0);
    return around < Infinity && pixels <= WHOLE ? this.soon(Infinity, PAUSE) : undefined;
  }

  /**
   * The first tile in the window, or near it, that is not drawn yet.
   *
   * @param {number} around  CSS pixels around the window
   */
  wanted(around) {
    const { top } = this.root.getBoundingClientRect();
    const count = this.drawing?.places.length ?? 0;
    return this.tiles.find((tile) => {
      const above = top + tile.top;
      const near = above < innerHeight + around && above + TILE > -around;
      return near && tile.lines < count && tile.canvas.height > 0;
    });
  }

  /**
   * Takes the lines of a tile: the strongest alone when all of them take long.
   *
   * @param {Tile} tile
   * @param {import("./lines.js").Drawing} drawing
   */
  begin(tile, drawing) {
    const count = drawing.places.length;
    const lines = count > MANY && tile.lines < 0 ? SHARP : count;
    this.raster.start(tile.canvas.width, tile.canvas.height);
    const add = lineAdder(drawing, this.raster, tile.top, tile.canvas.width / drawing.geometry.width);
    for (let i = 0; i < lines; i += 1) add(i);
    return { tile, lines };
  }
}
