/** The head view to take away: the lines that are drawn, and their weights. */

import { gatherLines, largest, lineAlpha, meanWeights, opposite, weightOf } from "../../core/data/attention.js";
import { penOf } from "../../core/draw/canvas.js";
import { headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { Raster } from "../../core/draw/raster.js";
import { percent, tokenText } from "../../core/text/text.js";
import { lineAdder, lineOffsets, lineWidth } from "./lines.js";
import { leastDrawn } from "./parts.js";

/** CSS pixels. */
const WIDTH = 760;
const MARGIN = 24;
const HEAD = 68;
const LEFT = 250;
const RIGHT = 510;
const GAP = 10;
const WEIGHT = 52;
/** From this many tokens on, rows are lower. */
const MANY = 64;
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
 * @property {import("./head.js").Scene} scene
 * @property {import("../../core/data/attention.js").Focus | null} focus
 * @property {import("../../core/data/data.js").Tokens} keyTokens
 * @property {{ink: string, soft: string, faint: string, paper: string}} colors
 */

/**
 * @param {Shot} shot
 * @returns {import("../../core/export/figure.js").Figure}
 */
export function headFigure({ scene, focus, keyTokens, colors }) {
  const { tokens, layer, heads, shown, top, look } = scene;
  const row = tokens.text.length > MANY ? 16 : 22;
  const rows = Math.max(tokens.text.length, keyTokens.text.length);
  const height = rows * row;
  const heights = Float64Array.from({ length: rows }, (_, i) => (i + 0.5) * row);
  const geometry = { width: RIGHT - LEFT, height, middles: { query: heights, key: heights }, row };
  const places = gatherLines(layer, heads, shown, leastDrawn(scene, look.strength, focus), focus, top);
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

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {import("./head.js").Scene} scene
 * @param {Shot["colors"]} colors
 */
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

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {import("./lines.js").Drawing} drawing
 */
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

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {import("./lines.js").Drawing} drawing
 */
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
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {{side: import("../../core/data/attention.js").Side, y: number, row: number, mark: string, text: string,
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
