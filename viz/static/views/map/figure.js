/** The map to take away: the window that is seen, a pixel or more a cell, and its weights. */

import { element } from "../../core/draw/dom.js";
import { paintAround, paintCells } from "./paint.js";

/** CSS pixels around it. */
const MARGIN = 16;
/** Pixels a side of the image, at most. */
const LARGEST = 2048;

/**
 * @param {ReturnType<import("./map.js").MapView["plot"]>} plot
 * @param {{name: string, theme: "light" | "dark", scale: "root" | "linear",
 *   tokens: import("../../core/data/data.js").Tokens, keyTokens: import("../../core/data/data.js").Tokens}} about
 * @returns {import("../../core/export/figure.js").Figure}
 */
export function mapFigure(plot, { name, theme, scale, tokens, keyTokens }) {
  const { weights, colors } = plot;
  const [top, bottom, left, right] = plot.window.map(Math.round);
  const frame = { ...plot.frame, left: plot.frame.left + MARGIN, top: plot.frame.top + MARGIN };
  return {
    name,
    width: frame.total + 2 * MARGIN,
    height: frame.tall + 2 * MARGIN,
    paper: colors.paper,
    paint(pen) {
      const canvas = element("canvas");
      const [width, height] = [Math.min(right - left, LARGEST), Math.min(bottom - top, LARGEST)];
      paintCells(canvas, width, height, weights, [top, bottom, left, right], { theme, scale, paper: colors.paper });
      pen.image(frame.left, frame.top, frame.width, frame.height, canvas);
      paintAround(pen, { ...plot, frame, window: [top, bottom, left, right] });
    },
    columns: ["query", "query token", "key", "key token", "weight"],
    *rows() {
      for (let query = top; query < bottom; query += 1) {
        const end = weights.causal ? Math.min(right, query + 1) : right;
        for (let key = left; key < end; key += 1) {
          const weight = weights.probs[query * weights.nKeys + key];
          yield [query, tokens.text[query], key, keyTokens.text[key], weight];
        }
      }
    },
  };
}
