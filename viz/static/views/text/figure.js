/** The text view to take away: its words where they stand on the page. */

import { cssColors } from "../../core/draw/css_colors.js";

const MARGIN = 16;
const CAPTION = 26;

/**
 * @param {HTMLElement} root  of the view, as it is shown
 * @param {import("./card.js").Scene} scene
 * @returns {import("../../core/export/figure.js").Figure}
 */
export function textFigure(root, scene) {
  const { ink, soft, paper } = cssColors(root);
  const texts = [...root.querySelectorAll(".text-text")];
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const [left, top] = [boxes[0].left - MARGIN, boxes[0].top - MARGIN - CAPTION];
  const words = [...root.querySelectorAll(".text-token")].map((item) => wordOf(/** @type {HTMLElement} */ (item), left, top));
  return {
    name: "attention-text",
    width: boxes[0].width + 2 * MARGIN,
    height: boxes[boxes.length - 1].bottom - top + MARGIN,
    paper,
    paint(pen) {
      pen.text(MARGIN, MARGIN + 10, captionOf(scene), { size: 13, color: soft });
      for (const { rects, background, text, size, color, baseline, kept } of words) {
        for (const { x, y, width, height } of rects) {
          if (background) pen.rect(x, y, width, height, background.hex, background.alpha);
          if (kept) frame(pen, x, y, width, height, ink);
        }
        pen.text(rects[0].x + 2, baseline, text, { size, color });
      }
    },
    columns: ["position", "token", scene.measure],
    *rows() {
      for (const [i, value] of scene.shading.values.entries()) {
        yield [i, scene.tokens.text[i], scene.takesPart[i] ? value : ""];
      }
    },
  };

  /** @param {HTMLElement} item @param {number} x0 @param {number} y0 */
  function wordOf(item, x0, y0) {
    const own = getComputedStyle(item);
    const rects = [...item.getClientRects()].map(({ x, y, width, height }) => ({ x: x - x0, y: y - y0, width, height }));
    const size = parseFloat(own.fontSize);
    return {
      rects,
      background: withoutAlpha(own.backgroundColor),
      text: item.textContent ?? "",
      size,
      color: withoutAlpha(own.color)?.hex ?? ink,
      baseline: rects[0].y + rects[0].height / 2 + size * 0.35,
      kept: item.classList.contains("kept"),
    };
  }
}

/** @param {import("./card.js").Scene} scene */
function captionOf({ where, measure, name, others, chosen }) {
  const token = chosen === null ? "" : ` “${others.text[chosen].trim()}”`;
  const says = {
    received: "attention received",
    from: `where${token} looks`,
    to: `who looks at${token}`,
    relevance: name + (token && ` for${token}`),
  }[measure];
  return `${where}: ${says}`;
}

/** @param {string} written  as a browser computes it: rgb() or rgba() */
function withoutAlpha(written) {
  const [red, green, blue, alpha = 1] = (written.match(/[\d.]+/g) ?? []).map(Number);
  if (red === undefined || alpha === 0) return null;
  const hex = `#${[red, green, blue].map((value) => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
  return { hex, alpha };
}

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} color
 */
function frame(pen, x, y, width, height, color) {
  const [right, bottom] = [x + width, y + height];
  for (const edge of [y, bottom]) pen.line(x, edge, right, edge, color, 2);
  for (const edge of [x, right]) pen.line(edge, y, edge, bottom, color, 2);
}
