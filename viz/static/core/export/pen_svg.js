/**
 * A figure as SVG: the pen that writes markup.
 *
 * What comes from outside enters as text of a text element, and only there: every character
 * without a picture of its own is replaced by one, and the rest escaped, so that the file is valid
 * XML whatever a token holds. "\u003c/" is how a script inside HTML has to write the beginning of an
 * end tag.
 *
 * @typedef {import("./figure.js").Pen} Pen
 */

import { BEND } from "../draw/raster.js";
import { visible } from "../text/text.js";
import { FONTS } from "./figure.js";

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/**
 * Text as it may stand in XML 1.0, which has no NUL, no lone surrogates, no U+FFFE and U+FFFF.
 *
 * @param {string} text
 */
function xmlText(text) {
  return visible(text, Infinity)
    .replace(/[\ufffe\uffff]/g, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase()}⟩`)
    .replace(/[&<>"]/g, (one) => ENTITIES[one]);
}

/**
 * @param {import("./figure.js").Figure} figure
 * @returns {Blob}
 */
export function toSvg(figure) {
  const [width, height] = [figure.width, figure.height].map(Math.ceil);
  const pen = new SvgPen();
  pen.rect(0, 0, width, height, figure.paper);
  figure.paint(pen);
  const sizes = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
  const head = `<svg xmlns="http://www.w3.org/2000/svg" ${sizes} font-family="${FONTS}">\n`;
  return new Blob(['<?xml version="1.0" encoding="UTF-8"?>\n', head, ...pen.parts, "\u003c/svg>\n"], {
    type: "image/svg+xml",
  });
}

/**
 * Hundredths of a CSS pixel are finer than any print.
 *
 * @param {number[]} numbers
 */
function written(...numbers) {
  return numbers.map((number) => String(Math.round(number * 100) / 100)).join(" ");
}

/**
 * @param {string} name
 * @param {number} alpha
 */
function opacity(name, alpha) {
  return alpha < 1 ? ` ${name}-opacity="${alpha.toFixed(4)}"` : "";
}

/** @implements {Pen} */
class SvgPen {
  constructor() {
    /** @type {string[]} */
    this.parts = [];
  }

  /** @type {Pen["rect"]} */
  rect(x, y, width, height, color, alpha = 1) {
    this.parts.push(
      `<rect ${place(x, y, width, height)} fill="${color}"${opacity("fill", alpha)}/>\n`,
    );
  }

  /** @type {Pen["line"]} */
  line(x0, y0, x1, y1, color, width, alpha = 1) {
    this.path(`M${written(x0, y0)}L${written(x1, y1)}`, color, width, alpha);
  }

  /** @type {Pen["curve"]} */
  curve(x0, y0, x1, y1, color, width, alpha = 1) {
    const bend = BEND * (x1 - x0);
    const rest = written(x0 + bend, y0, x1 - bend, y1, x1, y1);
    this.path(`M${written(x0, y0)}C${rest}`, color, width, alpha);
  }

  /** @type {Pen["dot"]} */
  dot(x, y, radius, color, alpha = 1) {
    const [cx, cy, r] = [x, y, radius].map((number) => written(number));
    this.parts.push(`<circle cx="${cx}" cy="${cy}" r="${r}" fill="${color}"${opacity("fill", alpha)}/>\n`);
  }

  /**
   * @param {string} steps
   * @param {string} color
   * @param {number} width
   * @param {number} alpha
   */
  path(steps, color, width, alpha) {
    const stroke = `stroke="${color}" stroke-width="${written(width)}"${opacity("stroke", alpha)}`;
    this.parts.push(`<path d="${steps}" fill="none" ${stroke}/>\n`);
  }

  /** @type {Pen["text"]} */
  text(x, y, text, { size, color, anchor = "start", bold = false, angle = 0 }) {
    if (!text) return;
    const attributes = [`x="${written(x)}" y="${written(y)}" font-size="${written(size)}" fill="${color}"`];
    if (anchor !== "start") attributes.push(`text-anchor="${anchor}"`);
    if (bold) attributes.push('font-weight="600"');
    if (angle) attributes.push(`transform="rotate(${written(angle, x, y)})"`);
    this.parts.push(`<text xml:space="preserve" ${attributes.join(" ")}>${xmlText(text)}\u003c/text>\n`);
  }

  /** @type {Pen["image"]} */
  image(x, y, width, height, image) {
    const sharp = image.width <= width * 2 ? ' image-rendering="pixelated"' : "";
    const source = image.toDataURL("image/png");
    this.parts.push(
      `<image ${place(x, y, width, height)} preserveAspectRatio="none"${sharp} href="${source}"/>\n`,
    );
  }
}

/**
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 */
function place(x, y, width, height) {
  return `x="${written(x)}" y="${written(y)}" width="${written(width)}" height="${written(height)}"`;
}
