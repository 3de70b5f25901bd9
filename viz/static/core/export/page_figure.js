/**
 * What stands in an element as a figure to take away: grounds, canvases and words where the page has them.
 *
 * @import { Figure, Pen } from "./figure.js"
 */

import { cssColors } from "../draw/canvas.js";
import { element } from "../draw/dom.js";
import { FONTS, moved } from "./figure.js";

/** CSS pixels: around it, and above it for its title. */
const [MARGIN, TITLE] = [24, 40];

/**
 * @param {HTMLElement} root
 * @param {string} title
 * @param {Pick<Figure, "name" | "columns" | "rows">} table
 * @param {Map<Element, (pen: Pen) => void>} [strokes]  what paints an element from its corner, in the place of its canvases
 * @returns {Figure}
 */
export function pageFigure(root, title, table, strokes = new Map()) {
  const { width, height } = root.getBoundingClientRect();
  const { ink, paper } = cssColors(root);
  return {
    ...table,
    width: width + 2 * MARGIN,
    height: height + 2 * MARGIN + TITLE,
    paper,
    paint(pen) {
      const { left, top } = root.getBoundingClientRect();
      pen.text(MARGIN, MARGIN + 16, fitting(title, width), { size: 18, color: ink, bold: true });
      const within = moved(pen, MARGIN - left, MARGIN + TITLE - top);
      for (const one of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("*"))) {
        if (one.checkVisibility()) paintElement(within, one, strokes);
      }
    },
  };
}

/** As much of a title as fits. @param {string} title @param {number} width */
function fitting(title, width) {
  const pen = element("canvas").getContext("2d");
  if (!pen) return title;
  pen.font = `600 18px ${FONTS}`;
  const fits = (/** @type {string} */ text) => pen.measureText(text).width <= width;
  const letters = [...title].slice(0, Math.ceil(width));
  while (letters.length && !fits(`${letters.join("")}…`)) letters.pop();
  return fits(title) ? title : `${letters.join("").trimEnd()}…`;
}

/** @param {Pen} pen @param {HTMLElement} one @param {Map<Element, (pen: Pen) => void>} strokes */
function paintElement(pen, one, strokes) {
  const { left, top, width, height } = one.getBoundingClientRect();
  const { backgroundColor, color, fontSize, fontWeight, overflowX } = getComputedStyle(one);
  const ground = colorOf(backgroundColor);
  if (ground.alpha && width && height) pen.rect(left, top, width, height, ground.hex, ground.alpha);
  strokes.get(one)?.(moved(pen, left, top));
  if (one instanceof HTMLCanvasElement && ![...strokes.keys()].some((own) => own.contains(one))) pen.image(left, top, width, height, one);
  const style = { size: parseFloat(fontSize), color: colorOf(color).hex, bold: Number(fontWeight) >= 600 };
  const end = overflowX === "visible" ? Infinity : left + width + 1;
  for (const node of one.childNodes) if (node instanceof Text) paintWords(pen, node, style, end);
}

/**
 * Word by word: the lines that they stand in are the page's.
 *
 * @param {Pen} pen
 * @param {Text} node
 * @param {{size: number, color: string, bold: boolean}} style
 * @param {number} end  CSS pixels: where the element is cut off
 */
function paintWords(pen, node, style, end) {
  const range = document.createRange();
  for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
    let shown = word.length;
    const box = () => {
      range.setStart(node, index);
      range.setEnd(node, index + shown);
      return range.getBoundingClientRect();
    };
    while (shown && box().right > end) shown -= 1;
    const { left, top, height } = box();
    const text = shown < word.length ? `${word.slice(0, shown)}…` : word;
    if (height && shown) pen.text(left, top + (height + 0.7 * style.size) / 2, text, style);
  }
}

/** A colour as getComputedStyle writes it: rgb(1, 2, 3), rgba(1, 2, 3, 0.4). @param {string} css */
function colorOf(css) {
  const [red, green, blue, alpha = 1] = (css.match(/[\d.]+/g) ?? ["0", "0", "0", "0"]).map(Number);
  return { hex: `#${[red, green, blue].map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`, alpha };
}
