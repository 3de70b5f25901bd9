/**
 * Lines as pixels.
 *
 * A canvas strokes some thousand long lines in a tenth of a second and rounds each faint one to
 * 8 bits. Here they are summed exactly, front to back, column after column, so that a column's
 * sums stay in the processor's cache; and the same numbers give the same pixels everywhere. Of
 * many lines all but the strongest, which nobody can tell apart, are summed at half the
 * resolution, behind the others: a quarter of the work.
 *
 * A pixel's sums are two numbers that hold two integers each: red and green, blue and ink. A color
 * has 8 bits and the ink of a line 16, so each integer has 24 and a pair 48: exact in a float64.
 */

/** How far the bends of a line lie from its ends, in parts of its width. */
export const BEND = 0.4;
/** Full ink, and what the second integer of a pair is multiplied by. */
const INK = 2 ** 16;
const SECOND = 2 ** 24;
/** By products with these a power of two is divided by, exactly and without a division. */
const PER_INK = 1 / INK;
const PER_SECOND = 1 / SECOND;
/** Numbers a line takes. */
const PARTS = 6;
/** The slope of a line where it is steepest, in the middle, is 1.67 times its mean. */
const STEEPEST = 1.7;
/** Columns between two looks at the clock. */
const COLUMNS = 16;

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

/** @typedef {{rises: Float64Array<ArrayBuffer>, slopes: Float64Array<ArrayBuffer>}} Bend  in each column: the part of its rise that a line has behind it, and what it rises there */

/** By columns and span: each text that is typed has a new sheet, as wide as the one before. @type {Map<string, Bend>} */
const bends = new Map();
/** Of two pictures, at both resolutions, before and after a change of their width. */
const KEPT = 8;

/** @param {number} width @param {number} span @returns {Bend} */
function bendOf(width, span) {
  const name = `${width} ${span}`;
  const known = bends.get(name);
  if (known) return known;
  const edges = Float64Array.from({ length: width + 1 }, (_, x) => riseAt(x / span));
  const rises = Float64Array.from({ length: width }, (_, x) => riseAt((x + 0.5) / span));
  const made = { rises, slopes: edges.subarray(1).map((rise, x) => rise - edges[x]) };
  bends.set(name, made);
  for (const oldest of [...bends.keys()].slice(0, -KEPT)) bends.delete(oldest);
  return made;
}

/** Lines at one resolution, and one column of their picture. */
class Layer {
  constructor() {
    this.lines = new Float64Array(PARTS * 512);
    this.sums = new Float64Array();
    this.rises = new Float64Array();
    this.slopes = new Float64Array();
    this.height = 0;
    this.count = 0;
    this.span = 0;
  }

  /** @param {number} width @param {number} height @param {number} span */
  start(width, height, span) {
    ({ rises: this.rises, slopes: this.slopes } = bendOf(width, span));
    if (this.height !== height) this.sums = new Float64Array(2 * height);
    this.height = height;
    this.span = span;
    this.count = 0;
  }

  /**
   * @param {number} from
   * @param {number} to
   * @param {number} thickness
   * @param {[number, number, number]} color
   * @param {number} alpha
   */
  add(from, to, thickness, [red, green, blue], alpha) {
    const slack = ((1 + thickness) * (1 + (STEEPEST * Math.abs(to - from)) / this.span)) / 2;
    if (Math.max(from, to) < -slack || Math.min(from, to) > this.height + slack) return;
    const place = this.count * PARTS;
    if (place === this.lines.length) {
      const { lines } = this;
      this.lines = new Float64Array(2 * place);
      this.lines.set(lines);
    }
    this.lines[place] = from;
    this.lines[place + 1] = to - from;
    this.lines[place + 2] = thickness / 2;
    this.lines[place + 3] = alpha;
    this.lines[place + 4] = red + green * SECOND;
    this.lines[place + 5] = blue + SECOND;
    this.count += 1;
  }

  /**
   * Sums what all lines leave in a column.
   *
   * All in one loop: calls and fields in it make it three times as slow.
   *
   * @param {number} x
   */
  sum(x) {
    const { lines, sums, height } = this;
    const part = this.rises[x];
    const steep = this.slopes[x];
    const end = this.count * PARTS;
    sums.fill(0);
    for (let line = 0; line < end; line += PARTS) {
      const rise = lines[line + 1];
      const middle = lines[line] + rise * part - 0.5;
      const slope = Math.abs(rise) * steep;
      // Across a column the line covers this half height fully and fades out over `fade`.
      const half = lines[line + 2] * Math.sqrt(1 + slope * slope);
      const fade = slope > 1 ? slope : 1;
      const reach = half + fade / 2;
      const alpha = lines[line + 3];
      const ramp = slope > 1 ? alpha / slope : alpha;
      const peak = 2 * half < fade ? 2 * half * ramp : alpha;
      const first = lines[line + 4];
      const second = lines[line + 5];
      const last = Math.min(height - 1, Math.floor(middle + reach)) | 0;
      for (let y = Math.max(0, Math.ceil(middle - reach)) | 0; y <= last; y += 1) {
        const place = y << 1;
        const there = sums[place | 1];
        const edge = (reach - Math.abs(y - middle)) * ramp;
        const own = Math.floor((edge < peak ? edge : peak) * (INK - there * PER_SECOND) + 0.5);
        sums[place] += own * first;
        sums[place | 1] = there + own * second;
      }
    }
  }
}

export class Raster {
  constructor() {
    this.width = 0;
    this.height = 0;
    this.next = 0;
    this.sharp = new Layer();
    this.faint = new Layer();
    this.pixels = new Uint32Array();
  }

  /**
   * An empty picture.
   *
   * @param {number} width  device pixels
   * @param {number} height
   */
  start(width, height) {
    this.sharp.start(width, height, width);
    this.faint.start(Math.ceil(width / 2), Math.ceil(height / 2), width / 2);
    this.pixels = new Uint32Array(width * height);
    this.width = width;
    this.height = height;
    this.next = 0;
  }

  /**
   * Adds a line from the left edge to the right, behind those that are there.
   *
   * @param {number} from  its height at the left edge, device pixels
   * @param {number} to  at the right edge
   * @param {number} thickness
   * @param {[number, number, number]} color  0 to 255
   * @param {number} alpha
   */
  add(from, to, thickness, color, alpha) {
    this.sharp.add(from, to, thickness, color, alpha);
  }

  /**
   * Adds a line behind all others, at half the resolution.
   *
   * @param {number} from
   * @param {number} to
   * @param {number} thickness
   * @param {[number, number, number]} color
   * @param {number} alpha
   */
  addFaint(from, to, thickness, color, alpha) {
    this.faint.add(from / 2, to / 2, thickness / 2, color, alpha);
  }

  /**
   * Draws the lines, or goes on drawing them.
   *
   * @param {number} [until]  when to stop, by `performance.now`
   * @returns {boolean}  whether all is drawn
   */
  draw(until = Infinity) {
    while (this.next < this.width) {
      if (this.next % 2 === 0) this.faint.sum(this.next / 2);
      this.sharp.sum(this.next);
      this.write(this.next);
      this.next += 1;
      if (this.next % COLUMNS === 0 && performance.now() > until) break;
    }
    return this.next === this.width;
  }

  /** @param {number} x */
  write(x) {
    const { pixels, width, height } = this;
    const front = this.sharp.sums;
    const back = this.faint.sums;
    for (let y = 0, place = x; y < height; y += 1, place += width) {
      const first = front[2 * y];
      const second = front[2 * y + 1];
      const below = back[y & -2];
      const last = back[y | 1];
      if (second + last === 0) continue;
      const ink = Math.floor(second * PER_SECOND);
      const left = 1 - ink * PER_INK;
      const behind = Math.floor(last * PER_SECOND);
      const green = Math.floor(first * PER_SECOND);
      const greenBehind = Math.floor(below * PER_SECOND);
      const alpha = ink + left * behind;
      const red = (first - green * SECOND + left * (below - greenBehind * SECOND)) / alpha;
      const blue = (second - ink * SECOND + left * (last - behind * SECOND)) / alpha;
      // Four bytes at once, the lowest first, as every machine with a browser holds them.
      pixels[place] =
        (red + 0.5) |
        (((green + left * greenBehind) / alpha + 0.5) << 8) |
        ((blue + 0.5) << 16) |
        (((alpha * 255) / INK + 0.5) << 24);
    }
  }

  /** Puts the picture on a canvas of its size. @param {CanvasRenderingContext2D} pen */
  show(pen) {
    const bytes = new Uint8ClampedArray(this.pixels.buffer);
    pen.putImageData(new ImageData(bytes, this.width, this.height), 0, 0);
  }
}
