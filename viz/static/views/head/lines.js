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
 * @import { Focus, Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Layer } from "../../core/data/example.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Scene } from "./head.js"
 */

import { gatherLines, largest, lineAlpha, meanWeights, opposite, weightOf } from "../../core/data/attention.js";
import { penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { Raster, riseAt } from "../../core/draw/raster.js";
import { percent, tokenText } from "../../core/text/text.js";
import { leastDrawn } from "./head.js";

/** CSS pixels between the lines of neighbouring heads, and the part of a row they fill at most. */
const MOST_APART = 3;
const SPREAD = 0.6;
/** So many are drawn at full resolution. */
export const SHARP = 1000;
/** How much is left of a faded line. */
const FADED = 0.2;
/** Pixels between a line and a click that still mean the line. */
const REACH = 5;

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

/** @param {number} weight */
export function lineWidth(weight) {
  return 1 + 2 * weight;
}

/**
 * A function that adds the i-th line to a picture of the strip that begins at `top`.
 *
 * @param {Drawing} drawing
 * @param {Raster} raster
 * @param {number} top  CSS pixels
 * @param {number} scale  device pixels in a CSS pixel
 * @returns {(i: number) => void}
 */
function lineAdder(drawing, raster, top, scale) {
  const { layer, places, bright, geometry, look } = drawing;
  const { codes, nQueries, nKeys } = layer;
  const weights = Float64Array.from({ length: 256 }, (_, code) => weightOf(code));
  const alphas = weights.map((weight) => lineAlpha(weight, look.strength));
  const widths = weights.map((weight) => lineWidth(weight) * scale);
  const colors = look.numbers.map((number) => channels(headColor(number, look.theme)));
  const scaled = (/** @type {number} */ middle) => (middle - top) * scale;
  const [queries, keys] = [geometry.middles.query.map(scaled), geometry.middles.key.map(scaled)];
  const apart = lineOffsets(drawing).map((offset) => offset * scale);
  return (i) => {
    const place = places[i];
    const code = codes[place];
    const row = Math.floor(place / nKeys);
    const head = Math.floor(row / nQueries);
    const from = queries[row % nQueries] + apart[head];
    const to = keys[place % nKeys] + apart[head];
    const alpha = i < bright ? alphas[code] : alphas[code] * FADED;
    if (i >= SHARP) raster.addFaint(from, to, widths[code], colors[head], alpha);
    else raster.add(from, to, widths[code], colors[head], alpha);
  };
}

/**
 * The line at a point: the front one of those within reach, or -1.
 *
 * @param {Drawing} drawing
 * @param {number} x
 * @param {number} y
 */
export function lineAt(drawing, x, y) {
  const { layer, places, geometry } = drawing;
  if (x < 0 || x > geometry.width) return -1;
  const { nQueries, nKeys } = layer;
  const rise = riseAt(x / geometry.width);
  const apart = lineOffsets(drawing);
  for (const place of places) {
    const row = Math.floor(place / nKeys);
    const from = geometry.middles.query[row % nQueries];
    const to = geometry.middles.key[place % nKeys];
    const height = from + (to - from) * rise + apart[Math.floor(row / nQueries)];
    if (Math.abs(height - y) <= REACH) return place;
  }
  return -1;
}

/**
 * A sheet of lines as tall as the text, in tiles: those in the window are drawn first, then those
 * near it, and of a sheet that is not very tall the others too, so that a picture of the whole page
 * has them. Tiles of a very tall one are drawn when they come near.
 */

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
  /** @param {string} name @param {AbortSignal} ended */
  constructor(name, ended) {
    this.root = element("div", { class: `sheet ${name}` });
    this.raster = new Raster();
    this.tiles = /** @type {Tile[]} */ ([]);
    this.drawing = /** @type {Drawing | null} */ (null);
    this.begun = /** @type {{tile: Tile, lines: number} | null} */ (null);
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
   * @param {Drawing | null} drawing
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

  /** @param {Geometry} geometry */
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

  /** What is next when all around the window is drawn. @param {number} around */
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
   * @param {Drawing} drawing
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

/** CSS pixels. */
const WIDTH = 760;
const MARGIN = 24;
const HEAD = 68;
const LEFT = 250;
const RIGHT = 510;
const GAP = 10;
const WEIGHT = 52;
/** From this many tokens on, rows are lower. */
const DENSE = 64;
/** Above this many, lines become pixels: as curves they would be a file that programs choke on. */
const MOST_CURVES = 20000;
/** Lines as pixels: two in a CSS pixel, and so many CSS pixels high at a time. */
const SCALE = 2;
const STRIP = 1024;
/** How many weights are written out, and the least of them. */
const WRITTEN = 5;
const LEAST_WRITTEN = 0.005;

/**
 * @typedef {object} Shot  what is seen
 * @property {Scene} scene
 * @property {Focus | null} focus
 * @property {Tokens} keyTokens
 * @property {{ink: string, soft: string, faint: string, paper: string}} colors
 */

/** @param {Shot} shot @returns {Figure} */
export function headFigure({ scene, focus, keyTokens, colors }) {
  const { tokens, layer, heads, shown, look } = scene;
  const row = tokens.text.length > DENSE ? 16 : 22;
  const rows = Math.max(tokens.text.length, keyTokens.text.length);
  const height = rows * row;
  const heights = Float64Array.from({ length: rows }, (_, i) => (i + 0.5) * row);
  const geometry = { width: RIGHT - LEFT, height, middles: { query: heights, key: heights }, row };
  const places = gatherLines(layer, heads, shown, leastDrawn(scene, look.strength, focus), focus);
  const drawing = { layer, places, heads, bright: places.length, geometry, look };
  const where = `layer-${layer.number}${heads.length === 1 ? `-head-${look.numbers[heads[0]]}` : ""}`;
  return {
    name: `attention-${where}`,
    width: WIDTH,
    height: HEAD + height + MARGIN,
    paper: colors.paper,
    paint(pen) {
      paintTitle(pen, scene, colors);
      if (places.length > MOST_CURVES) paintPixels(pen, drawing);
      else paintCurves(pen, drawing);
      const means = focus ? meanWeights(layer, heads, shown, focus) : new Float64Array();
      const written = largest(means, WRITTEN, LEAST_WRITTEN);
      for (const side of /** @type {const} */ (["query", "key"])) {
        const own = side === "query" ? tokens : keyTokens;
        own.text.forEach((_, i) => {
          const bold = focus?.side === side && focus.index === i;
          const weight = focus && opposite(focus.side) === side && written.includes(i) ? percent(means[i]) : "";
          const color = !shown[side][i] || own.special[i] ? colors.faint : colors.ink;
          paintToken(pen, { side, y: HEAD + heights[i], row, ...tokenText(own, i, 60), weight, bold, color, colors });
        });
      }
    },
    columns: ["layer", "head", "query", "query token", "key", "key token", "weight"],
    *rows() {
      const nKeys = keyTokens.text.length;
      for (const place of Uint32Array.from(places).sort()) {
        const key = place % nKeys;
        const query = Math.floor(place / nKeys) % tokens.text.length;
        const head = look.numbers[Math.floor(place / (nKeys * tokens.text.length))];
        // A code says no more.
        const weight = Number(weightOf(layer.codes[place]).toPrecision(3));
        yield [layer.number, head, query, tokens.text[query], key, keyTokens.text[key], weight];
      }
    },
  };
}

/** @param {Pen} pen @param {Scene} scene @param {Shot["colors"]} colors */
function paintTitle(pen, { layer, heads, look }, { ink, soft }) {
  const size = 13;
  pen.text(LEFT - GAP, 30, "query", { size, color: soft, anchor: "end" });
  pen.text(RIGHT + GAP, 30, "key", { size, color: soft });
  pen.text((LEFT + RIGHT) / 2, 30, `Layer ${layer.number}`, { size, color: ink, anchor: "middle", bold: true });
  const step = Math.min(20, (RIGHT - LEFT) / heads.length);
  heads.forEach((head, i) => {
    const x = (LEFT + RIGHT) / 2 + (i - (heads.length - 1) / 2) * step;
    pen.rect(x - step / 2 + 1, 38, step - 2, 3, headColor(look.numbers[head], look.theme));
    if (step >= 14) pen.text(x, 54, String(look.numbers[head]), { size: 11, color: soft, anchor: "middle" });
  });
}

/** @param {Pen} pen @param {Drawing} drawing */
function paintCurves(pen, drawing) {
  const { layer, places, geometry, look } = drawing;
  const apart = lineOffsets(drawing);
  // The strongest come first and lie in front.
  for (let i = places.length - 1; i >= 0; i -= 1) {
    const key = places[i] % layer.nKeys;
    const query = Math.floor(places[i] / layer.nKeys) % layer.nQueries;
    const head = Math.floor(places[i] / (layer.nKeys * layer.nQueries));
    const weight = weightOf(layer.codes[places[i]]);
    const from = HEAD + geometry.middles.query[query] + apart[head];
    const to = HEAD + geometry.middles.key[key] + apart[head];
    const color = headColor(look.numbers[head], look.theme);
    pen.curve(LEFT, from, RIGHT, to, color, lineWidth(weight), lineAlpha(weight, look.strength));
  }
}

/** @param {Pen} pen @param {Drawing} drawing */
function paintPixels(pen, drawing) {
  const { places, geometry } = drawing;
  const raster = new Raster();
  for (let top = 0; top < geometry.height; top += STRIP) {
    const height = Math.min(STRIP, geometry.height - top);
    const canvas = element("canvas");
    canvas.width = geometry.width * SCALE;
    canvas.height = height * SCALE;
    raster.start(canvas.width, canvas.height);
    const add = lineAdder(drawing, raster, top, SCALE);
    for (let i = 0; i < places.length; i += 1) add(i);
    raster.draw();
    raster.show(penOf(canvas));
    pen.image(LEFT, HEAD + top, geometry.width, height, canvas);
  }
}

/**
 * @param {Pen} pen
 * @param {{side: Side, y: number, row: number, mark: string, text: string,
 *   weight: string, bold: boolean, color: string, colors: Shot["colors"]}} token
 */
function paintToken(pen, { side, y, row, mark, text, weight, bold, color, colors }) {
  const size = row < 20 ? 11 : 14;
  const base = y + size * 0.35;
  const outwards = side === "query" ? -1 : 1;
  const edge = side === "query" ? LEFT - GAP : RIGHT + GAP;
  const anchor = side === "query" ? "end" : "start";
  const room = LEFT - GAP - MARGIN - WEIGHT;
  pen.text(edge, base, fitted(mark + text, room, size, bold), { size, color, anchor, bold });
  const outer = edge + outwards * (room + WEIGHT);
  if (weight) pen.text(outer, base, weight, { size: 11, color: colors.soft, anchor: side === "query" ? "start" : "end" });
}

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;

/**
 * As much of a text as there is room for.
 *
 * @param {string} text
 * @param {number} room
 * @param {number} size
 * @param {boolean} bold
 */
function fitted(text, room, size, bold) {
  ruler ??= element("canvas").getContext("2d");
  if (!ruler) return text;
  // Wider than most fonts that a file's reader may have.
  ruler.font = `${bold ? "600 " : ""}${size}px Verdana, "DejaVu Sans", sans-serif`;
  const characters = [...text];
  while (characters.length && ruler.measureText(characters.join("")).width > room) characters.pop();
  return characters.length === [...text].length ? text : `${characters.join("")}…`;
}
