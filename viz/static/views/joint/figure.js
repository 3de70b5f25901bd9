/** Queries and keys in one plane as a figure to take away: discs and squares, and the places as a table. */

import { placeOf } from "./scatter.js";

const [WIDTH, HEIGHT, TOP, SIZE] = [720, 460, 56, 3];

/**
 * @param {object} given
 * @param {string} given.title
 * @param {import("./scatter.js").Point[]} given.points
 * @param {(point: import("./scatter.js").Point) => string} given.color
 * @param {import("../../core/data/source.js").Collected} given.collected
 * @param {ReturnType<typeof import("../../core/draw/css_colors.js").cssColors>} colors
 * @returns {import("../../core/export/figure.js").Figure}
 */
export function jointFigure({ title, points, color, collected }, { ink, soft, paper }) {
  return {
    name: "queries-and-keys",
    width: WIDTH,
    height: TOP + HEIGHT,
    paper,
    paint(pen) {
      pen.text(14, 30, title, { size: 14, color: ink, bold: true });
      pen.text(14, 48, "disc: query, square: key", { size: 12, color: soft });
      for (const point of points) {
        const [x, y] = placeOf(point, WIDTH, HEIGHT);
        if (point.side === "query") pen.dot(x, TOP + y, SIZE, color(point), 0.75);
        else pen.rect(x - SIZE, TOP + y - SIZE, 2 * SIZE, 2 * SIZE, color(point), 0.75);
      }
    },
    columns: ["side", "text", "position", "token", "x", "y"],
    *rows() {
      for (const { side, text, index, x, y } of points) yield [side, text, index, collected.from[text].tokens.text[index], x, y];
    },
  };
}
