/**
 * How the small pictures of heads become pixels.
 *
 * @typedef {Uint32Array} Inks  a pixel by code; the last is of what is not drawn
 *
 * @import { Example, Thumbnails } from "../../core/data/example.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Grid } from "../../marks/grid.js"
 */

import { STATISTICS } from "../../core/data/statistics.js";
import { penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { moved } from "../../core/export/figure.js";
import { screenPen } from "../../core/export/pens.js";
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
function brackets(example, { left, pitch, side }) {
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
/** Of the figure to take away: CSS pixels, around it, and pixels a side of each picture in it. */
const [WIDTH, MARGIN, SIDE] = [960, 16, 128];

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
 * @property {Marks} marks
 * @property {"light" | "dark"} theme
 * @property {string} ink
 * @property {string} soft
 * @property {string} faint
 * @property {string} paper
 * @property {string} ground
 */

/** @param {HTMLElement} host @param {Board} board */
export function paintTiles(host, board) {
  const { grid } = board;
  const scale = devicePixelRatio || 1;
  const perTile = Math.max(1, Math.floor(TILE / grid.pitch));
  const inks = board.example.heads.map((head) => inksFor(board, head));
  const paint = thumbPainter(board.thumbnails, board.sizes, Math.round(grid.side * scale));
  const canvases = [];
  for (let first = 0; first < grid.rows; first += perTile) {
    const last = Math.min(first + perTile, grid.rows);
    const top = first === 0 ? 0 : grid.top + first * grid.pitch;
    const bottom = last === grid.rows ? heightOf(grid) : grid.top + last * grid.pitch;
    const canvas = /** @type {HTMLCanvasElement} */ (host.children[canvases.length] ?? element("canvas"));
    const pen = screenPen(canvas, grid.left + grid.columns * grid.pitch, bottom - top);
    canvas.style.top = `${top}px`;
    const slots = [first * grid.columns, last * grid.columns];
    const image = pen.ground.createImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let place = slots[0]; place < slots[1]; place += 1) {
      const [x, y] = cornerOf(grid, place);
      const corner = Math.round((y - top) * scale) * canvas.width + Math.round(x * scale);
      const { strong, faded } = inks[place % inks.length];
      paint(pixels, canvas.width, corner, place, board.marks.has(place) ? strong : faded);
    }
    pen.ground.putImageData(image, 0, 0);
    writeAround(moved(pen, 0, -top), board, slots);
    canvases.push(canvas);
  }
  host.replaceChildren(...canvases);
}

/** @param {Board} board @param {number} head */
function inksFor({ theme, ground, paper, marks }, head) {
  const color = headColor(head, theme);
  const strong = inksOf(color, ground, paper, 1);
  return { strong, faded: marks.any ? inksOf(color, ground, paper, FADED) : strong };
}

/**
 * What is written around the pictures: above them the heads and at the left the layers; in the corner of a marked one
 * its score.
 *
 * @param {Pen} pen
 * @param {Board} board
 * @param {number[]} places  the first, and the end
 */
function writeAround(pen, board, [first, end]) {
  const { grid, example, marks, soft } = board;
  for (let place = first; place < end; place += 1) {
    const [x, y] = cornerOf(grid, place);
    if (place % grid.columns === 0) pen.text(x - 9, y + grid.side / 2 + 4, String(example.layers[place / grid.columns]), { size: 12, color: soft, anchor: "end" });
    if (marks.any && marks.has(place)) writeScore(pen, board, place, [x, y]);
  }
  if (first === 0) writeHeads(pen, board);
}

/** Numbers of heads with a stroke of their colour. @param {Pen} pen @param {Board} board */
function writeHeads(pen, { grid, example, theme, soft, faint }) {
  const { left, top, side, pitch } = grid;
  pen.text(0, 13, "head", { size: 10, color: faint });
  pen.text(0, 25, "layer", { size: 10, color: faint });
  const step = pitch < 18 ? 2 : 1;
  example.heads.forEach((head, i) => {
    if (i % step === 0) pen.text(left + i * pitch + side / 2, 13, String(head), { size: 12, color: soft, anchor: "middle" });
    pen.rect(left + i * pitch, top - 8, side, 3, headColor(head, theme));
  });
  for (const { x, width } of brackets(example, grid)) pen.rect(x, top - 4, width, 1.5, soft);
}

/** @param {Pen} pen @param {Board} board @param {number} place @param {[number, number]} corner */
function writeScore(pen, { grid: { side }, marks, ink, paper }, place, [x, y]) {
  for (const at of [x - 0.75, x + side + 0.75]) pen.line(at, y - 1.5, at, y + side + 1.5, ink, 1.5);
  for (const at of [y - 0.75, y + side + 0.75]) pen.line(x - 1.5, at, x + side + 1.5, at, ink, 1.5);
  const score = marks.score(place);
  if (side < 34 || Number.isNaN(score)) return;
  const text = percent(score);
  pen.rect(x + side - 7 * text.length - 2, y, 7 * text.length + 2, 15, paper);
  pen.text(x + side - 3, y + 12, text, { size: 11, color: ink, anchor: "end", bold: true });
}

/** @param {number} share */
function percent(share) {
  return `${Math.round(share * 100)}\u202f%`;
}

/**
 * The model view to take away: the same, with pictures of one size.
 *
 * @param {Omit<Board, "grid">} board
 * @param {number[][]} numbers  of each head, in the order of STATISTICS
 * @returns {Figure}
 */
export function modelFigure(board, numbers) {
  const { example, thumbnails, sizes, marks, paper } = board;
  const { layers, heads } = example;
  const grid = layOut(WIDTH - 2 * MARGIN, layers.length, heads.length);
  const picture = thumbPainter(thumbnails, sizes, SIDE);
  const inks = heads.map((head) => inksFor({ ...board, grid }, head));
  return {
    name: "attention-model",
    width: 2 * MARGIN + grid.left + grid.columns * grid.pitch,
    height: 2 * MARGIN + heightOf(grid),
    paper,
    paint(pen) {
      const within = moved(pen, MARGIN, MARGIN);
      numbers.forEach((_, place) => {
        const canvas = element("canvas", { width: String(SIDE), height: String(SIDE) });
        const ground = penOf(canvas);
        const image = ground.createImageData(SIDE, SIDE);
        const { strong, faded } = inks[place % inks.length];
        picture(new Uint32Array(image.data.buffer), SIDE, 0, place, marks.has(place) ? strong : faded);
        ground.putImageData(image, 0, 0);
        within.image(...cornerOf(grid, place), grid.side, grid.side, canvas);
      });
      writeAround(within, { ...board, grid }, [0, numbers.length]);
    },
    columns: ["layer", "head", ...STATISTICS.map(({ id }) => id)],
    *rows() {
      for (const [place, values] of numbers.entries()) {
        yield [layers[Math.floor(place / heads.length)], heads[place % heads.length], ...values.map((value) => (Number.isNaN(value) ? "" : value))];
      }
    },
  };
}
