/**
 * What stands in an element as a figure to take away: grounds, canvases and words where the page has them.
 *
 * @import { Figure, Pen } from "./figure.js"
 */

import { cssColors } from "../draw/canvas.js";
import { moved } from "./figure.js";

/** CSS pixels: around it, and above it for its title. */
const [MARGIN, TITLE] = [24, 40];

/**
 * @param {HTMLElement} root
 * @param {string} title
 * @param {Pick<Figure, "name" | "columns" | "rows">} table
 * @returns {Figure}
 */
export function pageFigure(root, title, table) {
  const { width, height } = root.getBoundingClientRect();
  const { ink, paper } = cssColors(root);
  return {
    ...table,
    width: width + 2 * MARGIN,
    height: height + 2 * MARGIN + TITLE,
    paper,
    paint(pen) {
      const { left, top } = root.getBoundingClientRect();
      pen.text(MARGIN, MARGIN + 16, title, { size: 18, color: ink, bold: true });
      const within = moved(pen, MARGIN - left, MARGIN + TITLE - top);
      for (const one of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("*"))) {
        if (one.checkVisibility()) paintElement(within, one);
      }
    },
  };
}

/** @param {Pen} pen @param {HTMLElement} one */
function paintElement(pen, one) {
  const { left, top, width, height } = one.getBoundingClientRect();
  const { backgroundColor, color, fontSize, fontWeight } = getComputedStyle(one);
  const ground = colorOf(backgroundColor);
  if (ground.alpha && width && height) pen.rect(left, top, width, height, ground.hex, ground.alpha);
  if (one instanceof HTMLCanvasElement) pen.image(left, top, width, height, one);
  const style = { size: parseFloat(fontSize), color: colorOf(color).hex, bold: Number(fontWeight) >= 600 };
  for (const node of one.childNodes) if (node instanceof Text) paintWords(pen, node, style);
}

/** Word by word: the lines that they stand in are the page's. @param {Pen} pen @param {Text} node @param {{size: number, color: string, bold: boolean}} style */
function paintWords(pen, node, style) {
  const range = document.createRange();
  for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const { left, top, height } = range.getBoundingClientRect();
    if (height) pen.text(left, top + (height + 0.7 * style.size) / 2, word, style);
  }
}

/** A colour as getComputedStyle writes it: rgb(1, 2, 3), rgba(1, 2, 3, 0.4). @param {string} css */
function colorOf(css) {
  const [red, green, blue, alpha = 1] = (css.match(/[\d.]+/g) ?? ["0", "0", "0", "0"]).map(Number);
  return { hex: `#${[red, green, blue].map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`, alpha };
}
