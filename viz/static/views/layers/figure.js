/** The layers view to take away. */

import { strongest } from "../../core/draw/contrast.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { tokenName } from "../../core/text/text.js";
import { cellText, placeOf } from "./table.js";

const MARGIN = 16;
const NAMES = 120;
const WIDTH = 84;
const ROW = 24;
/** Rows of the picture; the table has all. */
const MOST = 200;

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {import("../../core/data/data.js").Lens} lens
 * @param {import("../../core/state/fields.js").State} state
 * @param {"light" | "dark"} theme
 * @param {HTMLElement} root  whose colours it has
 * @returns {import("../../core/export/figure.js").Figure}
 */
export function layersFigure({ tokens }, { points, strings, probs }, { query }, theme, root) {
  const { ink, soft, hair, paper } = cssColors(root);
  const blue = signColor(1, theme);
  const size = tokens.text.length;
  const first = Math.max(0, Math.min((query ?? 0) - MOST / 2, size - MOST));
  const rows = Math.min(size, MOST);
  const left = (/** @type {number} */ point) => MARGIN + NAMES + point * WIDTH;
  return {
    name: "prediction-layers",
    width: left(points.length) + MARGIN,
    height: 2 * MARGIN + (rows + 1) * ROW,
    paper,
    paint(pen) {
      points.forEach((_, point) => {
        pen.text(left(point) + WIDTH / 2, MARGIN + 15, placeOf(points, point).short, { size: 12, color: soft, anchor: "middle" });
      });
      for (let i = 0; i < rows; i += 1) {
        const [row, top] = [first + i, MARGIN + (i + 1) * ROW];
        pen.line(MARGIN, top, left(points.length), top, hair, 1);
        pen.text(left(0) - 10, top + 16, cut(tokenName(tokens, row), 16), { size: 13, color: ink, anchor: "end", bold: row === query });
        points.forEach((__, point) => {
          const [token, probability] = [strings[point][row][0], probs[point][row][0]];
          pen.rect(left(point) + 1, top + 1, WIDTH - 2, ROW - 2, blue, probability * strongest(blue, theme));
          const bold = token === strings[points.length - 1][row][0];
          pen.text(left(point) + WIDTH / 2, top + 16, cut(cellText(token), 11), { size: 12, color: ink, anchor: "middle", bold });
        });
      }
    },
    columns: ["position", "token", "point", "rank", "prediction", "probability"],
    *rows() {
      for (let row = 0; row < size; row += 1) {
        for (const [point, name] of points.entries()) {
          for (const [rank, prediction] of strings[point][row].entries()) {
            yield [row, tokens.text[row], name, rank + 1, prediction, probs[point][row][rank]];
          }
        }
      }
    },
  };
}

/** @param {string} text @param {number} limit */
function cut(text, limit) {
  const characters = [...text];
  return characters.length > limit ? `${characters.slice(0, limit - 1).join("")}…` : text;
}
