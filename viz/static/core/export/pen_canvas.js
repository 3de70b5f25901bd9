/**
 * A figure as PNG: the pen that paints on a canvas.
 *
 * @typedef {import("./figure.js").Pen} Pen
 */

import { withAlpha } from "../draw/colors.js";
import { BEND } from "../draw/raster.js";
import { visible } from "../text/text.js";
import { FONTS } from "./figure.js";

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

/**
 * @param {import("./figure.js").Figure} figure
 * @returns {Promise<Blob>}
 */
export function toPng(figure) {
  const canvas = document.createElement("canvas");
  return new Promise((resolve, reject) => {
    paintOn(canvas, figure, scaleOf(figure));
    canvas.toBlob((blob) => {
      if (blob) resolve(blob);
      else reject(new Error(NO_MEMORY));
    }, "image/png");
  });
}

/**
 * Paints a figure on a canvas, which takes its size from it.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {import("./figure.js").Figure} figure
 * @param {number} scale  pixels in a CSS pixel
 */
export function paintOn(canvas, figure, scale) {
  canvas.width = Math.floor(figure.width * scale);
  canvas.height = Math.floor(figure.height * scale);
  const ground = canvas.getContext("2d");
  if (!ground) throw new Error(NO_MEMORY);
  ground.fillStyle = figure.paper;
  ground.fillRect(0, 0, canvas.width, canvas.height);
  ground.scale(scale, scale);
  figure.paint(new CanvasPen(ground, scale));
}

/** @implements {Pen} */
class CanvasPen {
  /**
   * @param {CanvasRenderingContext2D} ground
   * @param {number} scale
   */
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

  /** @type {Pen["line"]} */
  line(x0, y0, x1, y1, color, width, alpha = 1) {
    this.ground.beginPath();
    this.ground.moveTo(x0, y0);
    this.ground.lineTo(x1, y1);
    this.stroke(color, width, alpha);
  }

  /** @type {Pen["curve"]} */
  curve(x0, y0, x1, y1, color, width, alpha = 1) {
    const bend = BEND * (x1 - x0);
    this.ground.beginPath();
    this.ground.moveTo(x0, y0);
    this.ground.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    this.stroke(color, width, alpha);
  }

  /** @type {Pen["dot"]} */
  dot(x, y, radius, color, alpha = 1) {
    this.ground.beginPath();
    this.ground.arc(x, y, radius, 0, 2 * Math.PI);
    this.ground.fillStyle = withAlpha(color, alpha);
    this.ground.fill();
  }

  /**
   * @param {string} color
   * @param {number} width
   * @param {number} alpha
   */
  stroke(color, width, alpha) {
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
    this.ground.imageSmoothingEnabled = image.width > width * this.scale;
    this.ground.imageSmoothingQuality = "high";
    this.ground.drawImage(image, x, y, width, height);
  }
}
