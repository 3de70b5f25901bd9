/**
 * A figure as PNG: the pen that paints on a canvas.
 *
 * @import { Figure, Pen } from "./figure.js"
 */

import { penOn } from "../draw/canvas.js";
import { withAlpha } from "../draw/colors.js";
import { BEND, FONTS } from "./figure.js";
import { visible } from "../text/text.js";

/** Pixels of the picture in a CSS pixel. */
const SCALE = 2;
/** The longest side, and the largest area, that every browser can paint. */
const LONGEST = 16384;
const LARGEST = 2 ** 26;
const NO_MEMORY = "the browser has no memory for a picture this large";

/**
 * How many pixels a CSS pixel of a figure becomes: fewer where the picture would be too large.
 *
 * @param {{width: number, height: number}} figure
 */
export function scaleOf({ width, height }) {
  return Math.min(SCALE, LONGEST / width, LONGEST / height, Math.sqrt(LARGEST / (width * height)));
}

/** @param {Figure} figure @returns {Promise<Blob>} */
export async function toPng(figure) {
  const scale = scaleOf(figure);
  const canvas = document.createElement("canvas");
  canvas.width = Math.floor(figure.width * scale);
  canvas.height = Math.floor(figure.height * scale);
  const ground = canvas.getContext("2d");
  if (!ground) throw new Error(NO_MEMORY);
  ground.fillStyle = figure.paper;
  ground.fillRect(0, 0, canvas.width, canvas.height);
  ground.scale(scale, scale);
  figure.paint(new CanvasPen(ground, scale));
  const blob = await new Promise((/** @type {BlobCallback} */ made) => canvas.toBlob(made, "image/png"));
  if (!blob) throw new Error(NO_MEMORY);
  return blob;
}

/**
 * The pen of a canvas in the page, emptied and as large as is asked for.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width  CSS pixels
 * @param {number} height
 */
export function screenPen(canvas, width, height) {
  return new CanvasPen(penOn(canvas, width, height), devicePixelRatio || 1);
}

/** @implements {Pen} */
export class CanvasPen {
  /** @param {CanvasRenderingContext2D} ground @param {number} scale  device pixels in a CSS pixel */
  constructor(ground, scale) {
    this.ground = ground;
    this.scale = scale;
    ground.direction = "ltr";
  }

  /** @type {Pen["rect"]} */
  rect(x, y, width, height, color, alpha = 1) {
    this.ground.fillStyle = withAlpha(color, alpha);
    this.ground.fillRect(x, y, width, height);
  }

  /** @type {Pen["curve"]} */
  curve(x0, y0, x1, y1, color, width, alpha = 1) {
    const bend = BEND * (x1 - x0);
    this.ground.beginPath();
    this.ground.moveTo(x0, y0);
    this.ground.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    this.ground.strokeStyle = withAlpha(color, alpha);
    this.ground.lineWidth = width;
    this.ground.stroke();
  }

  /** @type {Pen["text"]} */
  text(x, y, text, { size, color, anchor = "start", bold = false, angle = 0 }) {
    const { ground } = this;
    ground.save();
    ground.translate(x, y);
    ground.rotate((angle * Math.PI) / 180);
    ground.font = `${bold ? "600 " : ""}${size}px ${FONTS}`;
    // "start" and "end" would follow the direction of the page.
    ground.textAlign = anchor === "middle" ? "center" : anchor === "end" ? "right" : "left";
    ground.fillStyle = color;
    if (text) ground.fillText(visible(text, Infinity), 0, 0);
    ground.restore();
  }

  /** @type {Pen["image"]} */
  image(x, y, width, height, image) {
    this.ground.imageSmoothingEnabled = image.width > width * this.scale + 1;
    this.ground.imageSmoothingQuality = "high";
    this.ground.drawImage(image, x, y, width, height);
  }
}

/**
 * A figure as SVG: the pen that writes markup.
 *
 * What comes from outside enters as text of a text element, and only there: every character
 * without a picture of its own is replaced by one, and the rest escaped, so that the file is valid
 * XML whatever a token holds. "\u003c/" is how a script inside HTML has to write the beginning of an
 * end tag.
 */

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** Text as it may stand in XML 1.0, which has no NUL, no lone surrogates, no U+FFFE and U+FFFF. @param {string} text */
function xmlText(text) {
  return visible(text, Infinity)
    .replace(/[\ufffe\uffff]/g, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase()}⟩`)
    .replace(/[&<>"]/g, (one) => ENTITIES[one]);
}

/** @param {Figure} figure @returns {Blob} */
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

/** Hundredths of a CSS pixel are finer than any print. @param {number[]} numbers */
function written(...numbers) {
  return numbers.map((number) => String(Math.round(number * 100) / 100)).join(" ");
}

/** @param {string} name @param {number} alpha */
function opacity(name, alpha) {
  return alpha < 1 ? ` ${name}-opacity="${alpha.toFixed(4)}"` : "";
}

/** @implements {Pen} */
class SvgPen {
  constructor() {
    this.parts = /** @type {string[]} */ ([]);
  }

  /** @type {Pen["rect"]} */
  rect(x, y, width, height, color, alpha = 1) {
    this.parts.push(
      `<rect ${place(x, y, width, height)} fill="${color}"${opacity("fill", alpha)}/>\n`,
    );
  }

  /** @type {Pen["curve"]} */
  curve(x0, y0, x1, y1, color, width, alpha = 1) {
    const bend = BEND * (x1 - x0);
    const steps = `M${written(x0, y0)}C${written(x0 + bend, y0, x1 - bend, y1, x1, y1)}`;
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

/** @param {number} x @param {number} y @param {number} width @param {number} height */
function place(x, y, width, height) {
  return `x="${written(x)}" y="${written(y)}" width="${written(width)}" height="${written(height)}"`;
}
