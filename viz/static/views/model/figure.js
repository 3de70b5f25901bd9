/** The model view to take away. */

import { STATISTICS } from "../../core/data/statistics.js";
import { penOf } from "../../core/draw/canvas.js";
import { headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { cornerOf, heightOf, layOut } from "../../marks/grid.js";
import { brackets } from "./brackets.js";
import { inksOf, thumbPainter } from "./inks.js";

/** CSS pixels of the figure, and pixels a side of each picture in it. */
const WIDTH = 960;
const SIDE = 128;

/**
 * @param {{example: import("../../core/data/example.js").Example, thumbnails: import("../../core/data/example.js").Thumbnails,
 *   sizes: {nQueries: number, nKeys: number, causal: boolean},
 *   measures: import("../../core/data/measures.js").Measures, theme: "light" | "dark", sorted: number[] | null,
 *   ink: string, soft: string, paper: string, ground: string}} view
 * @returns {import("../../core/export/figure.js").Figure}
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
