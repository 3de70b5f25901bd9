/**
 * Lines as pixels.
 *
 * A canvas strokes some thousand long lines in a tenth of a second and rounds each faint one to
 * 8 bits. Here they are summed in floating point, front to back, several times faster; and the
 * same numbers give the same pixels everywhere. Of many lines the faint ones, each of which can
 * hardly be seen, are summed at half the resolution, behind the others.
 */

/** How far the bends of a line lie from its ends, in parts of its width. */
export const BEND = 0.4;
/** The slope of that curve where it is steepest, in the middle: 1.67, with some room. */
const STEEPEST = 1.7;
/** Ink above this hides what is behind it. */
const FULL = 0.996;

/**
 * The part of its rise that a line has behind it at a part of its width: all lines bend alike.
 *
 * The line is the cubic Bézier curve with control points at (BEND, 0) and (1 - BEND, 1).
 *
 * @param {number} across  from 0 to 1
 */
export function riseAt(across) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 24; i += 1) {
    const t = (low + high) / 2;
    const x = 3 * t * (1 - t) * (BEND * (1 - t) + (1 - BEND) * t) + t ** 3;
    if (x < across) low = t;
    else high = t;
  }
  return low * low * (3 - 2 * low);
}

export class Raster {
  constructor() {
    this.width = 0;
    this.height = 0;
    this.ink = new Float32Array();
    this.rises = new Float64Array();
    this.slopes = new Float64Array();
    this.span = 0;
    /** The faint lines at half the size. @type {Raster | null} */
    this.behind = null;
    this.hazy = false;
  }

  /**
   * An empty picture.
   *
   * @param {number} width  device pixels
   * @param {number} height
   * @param {number} [span]  the width of a line, where the last pixel is not all of the picture
   */
  start(width, height, span = width) {
    if (this.span !== span) {
      this.rises = Float64Array.from({ length: width }, (_, x) => riseAt((x + 0.5) / span));
      this.slopes = Float64Array.from(
        { length: width },
        (_, x) => riseAt((x + 1) / span) - riseAt(x / span),
      );
    }
    this.span = span;
    this.hazy = false;
    if (this.ink.length === width * height * 4) this.ink.fill(0);
    else this.ink = new Float32Array(width * height * 4);
    this.width = width;
    this.height = height;
  }

  /**
   * Adds a faint line behind all others.
   *
   * @param {number} from
   * @param {number} to
   * @param {number} thickness
   * @param {[number, number, number]} color
   * @param {number} alpha
   */
  addFaint(from, to, thickness, color, alpha) {
    const behind = (this.behind ??= new Raster());
    if (!this.hazy) behind.start(Math.ceil(this.width / 2), Math.ceil(this.height / 2), this.width / 2);
    this.hazy = true;
    behind.add(from / 2, to / 2, thickness / 2, color, alpha);
  }

  /**
   * Adds a line from the left edge to the right, behind those that are there.
   *
   * All in one loop: calls and fields in it make it three times as slow.
   *
   * @param {number} from  its height at the left edge, device pixels
   * @param {number} to  at the right edge
   * @param {number} thickness
   * @param {[number, number, number]} color  0 to 255
   * @param {number} alpha
   */
  add(from, to, thickness, [red, green, blue], alpha) {
    const { width, height, rises, slopes, ink } = this;
    const rise = to - from;
    const step = width * 4;
    for (let x = this.firstColumn(from, rise, thickness); x < width; x += 1) {
      const middle = from + rise * rises[x];
      const slope = Math.abs(rise) * slopes[x];
      // Across a column the line covers this half height fully and fades out over `fade`.
      const half = (thickness / 2) * Math.sqrt(1 + slope * slope);
      const fade = slope > 1 ? slope : 1;
      const reach = half + fade / 2;
      if (middle + reach < 0 || middle - reach > height) {
        if (rise > 0 === middle > height) return;
        continue;
      }
      const peak = 2 * half < fade ? (alpha * 2 * half) / fade : alpha;
      const ramp = alpha / fade;
      const first = Math.max(0, Math.ceil(middle - reach - 0.5));
      const last = Math.min(height - 1, Math.floor(middle + reach - 0.5));
      let place = (first * width + x) * 4;
      for (let y = first; y <= last; y += 1, place += step) {
        const there = ink[place + 3];
        if (there > FULL) continue;
        const away = y + 0.5 - middle;
        const inwards = (reach - (away < 0 ? -away : away)) * ramp;
        const own = (inwards < peak ? inwards : peak) * (1 - there);
        ink[place] += own * red;
        ink[place + 1] += own * green;
        ink[place + 2] += own * blue;
        ink[place + 3] = there + own;
      }
    }
  }

  /**
   * The first column in which a line may touch the picture.
   *
   * @param {number} from
   * @param {number} rise
   * @param {number} thickness
   */
  firstColumn(from, rise, thickness) {
    const steepest = (STEEPEST * Math.abs(rise)) / this.span;
    const slack = ((1 + thickness) * (1 + steepest)) / 2;
    const outside = (from < 0 ? -from : from - this.height) - slack;
    const towards = from < 0 ? rise : -rise;
    if (outside <= 0) return 0;
    if (towards <= outside) return this.width;
    const needed = outside / towards;
    let [low, high] = [0, this.width];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rises[middle] < needed) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * Puts the picture on a canvas of its size.
   *
   * @param {CanvasRenderingContext2D} pen
   */
  show(pen) {
    const image = pen.createImageData(this.width, this.height);
    const { data } = image;
    const { ink, width, height } = this;
    const haze = this.hazy && this.behind ? this.behind.ink : new Float32Array(4);
    for (let y = 0, place = 0; y < height; y += 1) {
      const row = (y >> 1) * Math.ceil(width / 2);
      for (let x = 0; x < width; x += 1, place += 4) {
        const faint = this.hazy ? (row + (x >> 1)) * 4 : 0;
        const left = 1 - ink[place + 3];
        const alpha = 1 - left * (1 - haze[faint + 3]);
        if (alpha === 0) continue;
        for (let i = 0; i < 3; i += 1) data[place + i] = (ink[place + i] + left * haze[faint + i]) / alpha;
        data[place + 3] = alpha * 255;
      }
    }
    pen.putImageData(image, 0, 0);
  }
}
