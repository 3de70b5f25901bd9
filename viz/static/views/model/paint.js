/**
 * How the small pictures of heads become pixels.
 *
 * @typedef {Uint32Array} Inks  a pixel by code; the last is of what is not drawn
 *
 * @import { Example, Thumbnails } from "../../core/data/example.js"
 * @import { Measures, Statistic } from "../../core/data/statistics.js"
 * @import { Figure } from "../../core/export/figure.js"
 * @import { Grid } from "../../marks/grid.js"
 */

import { STATISTICS, written } from "../../core/data/statistics.js";
import { penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { cornerOf, heightOf, layOut } from "../../marks/grid.js";

const NOT_DRAWN = 256;

/**
 * The pixels of a head by code: from the ground to its colour. The code is the root of the
 * weight, so that small weights can be seen.
 *
 * @param {string} color
 * @param {string} ground
 * @param {string} paper
 * @param {number} strength  from 0 to 1
 * @returns {Inks}
 */
export function inksOf(color, ground, paper, strength) {
  const [full, empty] = [channels(color), channels(ground)];
  const inks = new Uint32Array(NOT_DRAWN + 1);
  const bytes = new Uint8ClampedArray(inks.buffer).fill(255);
  for (let code = 0; code < NOT_DRAWN; code += 1) {
    const alpha = (code / 255) * strength;
    for (let i = 0; i < 3; i += 1) bytes[4 * code + i] = empty[i] + (full[i] - empty[i]) * alpha;
  }
  bytes.set(channels(paper), 4 * NOT_DRAWN);
  return inks;
}

/**
 * For each pixel of a side, the first of the cells it shows; one more at the end.
 *
 * @param {number} side  device pixels
 * @param {number} cells
 */
function starts(side, cells) {
  return Int32Array.from({ length: side + 1 }, (_, i) => Math.floor((i * cells) / side));
}

/**
 * A function that puts small pictures into an image, each pixel the largest weight it covers.
 *
 * @param {Thumbnails} thumbnails
 * @param {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @param {number} side  device pixels
 */
export function thumbPainter({ rows, columns, codes }, { nQueries, nKeys, causal }, side) {
  const across = starts(side, columns);
  const down = starts(side, rows);
  // Of a causal model, the last column of each row that a query of it may look at.
  const last = Int32Array.from({ length: rows }, (_, row) => {
    const query = Math.max(row + 1, Math.floor(((row + 1) * nQueries) / rows)) - 1;
    return causal ? Math.ceil(((query + 1) * columns) / nKeys) : columns;
  });
  const line = new Uint16Array(side);
  return (/** @type {Uint32Array} */ pixels, /** @type {number} */ stride, /** @type {number} */ corner, /** @type {number} */ place, /** @type {Inks} */ inks) => {
    const from = place * rows * columns;
    for (let y = 0; y < side; y += 1) {
      const [low, high] = [down[y], Math.max(down[y + 1], down[y] + 1)];
      if (y === 0 || low !== down[y - 1] || high > low + 1) {
        for (let x = 0; x < side; x += 1) {
          const end = Math.max(across[x + 1], across[x] + 1);
          let most = across[x] < last[high - 1] ? 0 : NOT_DRAWN;
          for (let row = low; row < high && most < NOT_DRAWN; row += 1) {
            for (let column = across[x]; column < end; column += 1) {
              const code = codes[from + row * columns + column];
              if (code > most) most = code;
            }
          }
          line[x] = most;
        }
      }
      const to = corner + y * stride;
      for (let x = 0; x < side; x += 1) pixels[to + x] = inks[line[x]];
    }
  };
}

/**
 * Where each bracket begins, and how wide it is; none where each head has its own keys.
 *
 * @param {Example} example
 * @param {{left: number, pitch: number, side: number}} grid
 */
export function brackets(example, { left, pitch, side }) {
  const { heads, keyHeads, header } = example;
  const { n_heads: all, n_kv_heads: shared = all } = header.sizes;
  if (shared === all) return [];
  return keyHeads.map((own) => {
    const columns = heads.flatMap((head, i) => (example.keyHead(head) === own ? [i] : []));
    const [first, last] = [columns[0], columns[columns.length - 1]];
    return { x: left + first * pitch, width: (last - first) * pitch + side };
  });
}

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
 * @property {Example} example
 * @property {Thumbnails} thumbnails
 * @property {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @property {Grid} grid
 * @property {Measures} measures
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
 * @param {Statistic} statistic
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

/** CSS pixels of the figure, and pixels a side of each picture in it. */
const WIDTH = 960;
const SIDE = 128;

/**
 * @param {{example: Example, thumbnails: Thumbnails,
 *   sizes: {nQueries: number, nKeys: number, causal: boolean},
 *   measures: Measures, theme: "light" | "dark", sorted: number[] | null,
 *   ink: string, soft: string, paper: string, ground: string}} view
 * @returns {Figure}
 */
export function modelFigure({ example, thumbnails, sizes, measures, theme, sorted, ink, soft, paper, ground }) {
  const { layers, heads } = example;
  const grid = layOut(WIDTH - 32, layers.length, heads.length, sorted);
  const number = (/** @type {number} */ place) => [layers[Math.floor(place / heads.length)], heads[place % heads.length]];
  const picture = thumbPainter(thumbnails, sizes, SIDE);
  return {
    name: "attention-model",
    width: 32 + grid.left + grid.columns * grid.pitch,
    height: 32 + heightOf(grid),
    paper,
    paint(pen) {
      grid.places.forEach((place, slot) => {
        const [x, y] = cornerOf(grid, slot).map((at) => at + 16);
        const [layer, head] = number(place);
        const canvas = element("canvas");
        canvas.width = SIDE;
        canvas.height = SIDE;
        const ground2d = penOf(canvas);
        const image = ground2d.createImageData(SIDE, SIDE);
        picture(new Uint32Array(image.data.buffer), SIDE, 0, place, inksOf(headColor(head, theme), ground, paper, 1));
        ground2d.putImageData(image, 0, 0);
        pen.image(x, y, grid.side, grid.side, canvas);
        const middle = y + grid.side / 2 + 4;
        if (grid.named) pen.text(x, y + grid.side + 13, `${layer}-${head}`, { size: 11, color: ink });
        else if (slot % grid.columns === 0) pen.text(x - 8, middle, String(layer), { size: 12, color: soft, anchor: "end" });
        if (!grid.named && slot < grid.columns) {
          pen.text(x + grid.side / 2, y - 14, String(head), { size: 12, color: soft, anchor: "middle" });
          pen.rect(x, y - 8, grid.side, 3, headColor(head, theme));
        }
      });
      if (grid.named) return;
      for (const { x, width } of brackets(example, grid)) pen.rect(x + 16, grid.top + 12, width, 1.5, soft);
    },
    columns: ["layer", "head", ...STATISTICS.map(({ id }) => id)],
    *rows() {
      for (const place of grid.places) {
        const values = STATISTICS.map(({ id }) => measures.of(place, id));
        yield [...number(place), ...values.map((value) => (Number.isNaN(value) ? "" : value))];
      }
    },
  };
}
