/** The layers view to take away. */

import { cellText, placeOf } from "./lens_table.js";
import { signColor } from "../draw/neuron_colors.js";
import { strongest } from "../shaded/shaded_shades.js";
import { tokenName } from "../draw/text.js";

const MARGIN = 16;
const NAMES = 120;
const WIDTH = 84;
const ROW = 24;
/** Rows of the picture; the table has all. */
const MOST = 200;

/**
 * @param {import("../data/example.js").Example} example
 * @param {import("../data/data.js").Lens} lens
 * @param {import("../frame/fields.js").State} state
 * @param {"light" | "dark"} theme
 * @param {HTMLElement} root  whose colours it has
 * @returns {import("../export/figure.js").Figure}
 */
export function lensFigure({ tokens }, { points, strings, probs }, { query }, theme, root) {
  const style = getComputedStyle(root);
  const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const [ink, soft, hair] = [color("--ink"), color("--soft"), color("--hair")];
  const blue = signColor(1, theme);
  const size = tokens.text.length;
  const first = Math.max(0, Math.min((query ?? 0) - MOST / 2, size - MOST));
  const rows = Math.min(size, MOST);
  const left = (/** @type {number} */ point) => MARGIN + NAMES + point * WIDTH;
  return {
    name: "prediction-layers",
    width: left(points.length) + MARGIN,
    height: 2 * MARGIN + (rows + 1) * ROW,
    paper: color("--paper"),
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
