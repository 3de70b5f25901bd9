/**
 * A sheet of lines as tall as the text, in tiles: only those near the window are drawn, the
 * others when they come near.
 */

import { element } from "../draw/dom.js";
import { lineAdder } from "./lines.js";
import { Raster } from "../draw/raster.js";

/** CSS pixels. A canvas as tall as a long text would be past what browsers allow. */
const TILE = 640;
const NEAR = 320;
/** Milliseconds of drawing before what is there is shown and the browser may do something else. */
const SLICE = 45;

/**
 * @typedef {object} Tile
 * @property {HTMLCanvasElement} canvas
 * @property {number} top  CSS pixels
 * @property {number} next  the next line to draw; from `places.length` on the tile is done
 */

export class Sheet {
  /** @param {string} name */
  constructor(name) {
    this.root = element("div", { class: `sheet ${name}` });
    this.raster = new Raster();
    /** @type {Tile[]} */
    this.tiles = [];
    /** @type {import("./lines.js").Drawing | null} */
    this.drawing = null;
    /** @type {{tile: Tile, add: (i: number) => void} | null} */
    this.begun = null;
    this.whole = true;
    this.frame = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    // While it is captured: pages also lie in parts of a window that scroll by themselves.
    addEventListener("beforeprint", () => this.work(true));
    addEventListener("scroll", () => this.later(), { passive: true, capture: true });
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
      this.tiles.push({ canvas, top, next: 0 });
    }
    for (const tile of this.tiles) {
      const rows = Math.max(0, Math.round(Math.min(TILE, height - tile.top) * scale));
      tile.next = 0;
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

  /** Goes on as soon as the browser has done what waits. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.work());
  }

  /**
   * Draws for one slice of time, then asks for the next; on paper, all at once.
   *
   * @param {boolean} [all]
   */
  work(all = matchMedia("print").matches) {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    const until = all ? Infinity : performance.now() + SLICE;
    const around = all ? Infinity : NEAR;
    while (this.drawing && this.root.isConnected) {
      const tile = this.begun?.tile ?? this.wanted(0) ?? this.wanted(around);
      if (!this.begun && !this.wanted(0) && this.whole) this.root.dataset.drawn = "true";
      if (!tile) return undefined;
      const first = tile.next === 0;
      const finished = this.continue(tile, this.drawing, until);
      // The strongest lines at once, and then all of them.
      if (!finished && !first) return this.soon();
      const pen = /** @type {CanvasRenderingContext2D} */ (tile.canvas.getContext("2d"));
      this.raster.show(pen);
      if (!finished) return this.soon();
      this.begun = null;
      tile.next = Infinity;
    }
  }

  /**
   * The first tile in the window, or near it, that is not drawn yet.
   *
   * @param {number} around  CSS pixels around the window
   */
  wanted(around) {
    const { top } = this.root.getBoundingClientRect();
    return this.tiles.find((tile) => {
      const above = top + tile.top;
      const near = above < innerHeight + around && above + TILE > -around;
      return near && tile.next !== Infinity && tile.canvas.height > 0;
    });
  }

  /**
   * @param {Tile} tile
   * @param {import("./lines.js").Drawing} drawing
   * @param {number} until
   * @returns {boolean}  whether all lines are drawn
   */
  continue(tile, drawing, until) {
    if (!this.begun) {
      const scale = tile.canvas.width / drawing.geometry.width;
      this.raster.start(tile.canvas.width, tile.canvas.height);
      this.begun = { tile, add: lineAdder(drawing, this.raster, tile.top, scale) };
    }
    for (; tile.next < drawing.places.length; tile.next += 1) {
      if (tile.next % 256 === 255 && performance.now() > until) return false;
      this.begun.add(tile.next);
    }
    return true;
  }
}
