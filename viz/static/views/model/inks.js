/**
 * How the small pictures of heads become pixels.
 *
 * @typedef {Uint32Array} Inks  a pixel by code; the last is of what is not drawn
 */

import { channels } from "../../core/draw/colors.js";

const NOT_DRAWN = 256;

/**
 * The pixels of a head by code: from the ground to its colour. The code is the root of the
 * weight, so that small weights can be seen.
 *
 * @param {string} color
 * @param {string} ground
 * @param {string} paper
 * @param {number} strength  from 0 to 1
 * @returns {Inks}
 */
export function inksOf(color, ground, paper, strength) {
  const [full, empty] = [channels(color), channels(ground)];
  const inks = new Uint32Array(NOT_DRAWN + 1);
  const bytes = new Uint8ClampedArray(inks.buffer).fill(255);
  for (let code = 0; code < NOT_DRAWN; code += 1) {
    const alpha = (code / 255) * strength;
    for (let i = 0; i < 3; i += 1) bytes[4 * code + i] = empty[i] + (full[i] - empty[i]) * alpha;
  }
  bytes.set(channels(paper), 4 * NOT_DRAWN);
  return inks;
}

/**
 * For each pixel of a side, the first of the cells it shows; one more at the end.
 *
 * @param {number} side  device pixels
 * @param {number} cells
 */
function starts(side, cells) {
  return Int32Array.from({ length: side + 1 }, (_, i) => Math.floor((i * cells) / side));
}

/**
 * A function that puts small pictures into an image, each pixel the largest weight it covers.
 *
 * @param {import("../../core/data/example.js").Thumbnails} thumbnails
 * @param {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @param {number} side  device pixels
 */
export function thumbPainter({ rows, columns, codes }, { nQueries, nKeys, causal }, side) {
  const across = starts(side, columns);
  const down = starts(side, rows);
  // Of a causal model, the last column of each row that a query of it may look at.
  const last = Int32Array.from({ length: rows }, (_, row) => {
    const query = Math.max(row + 1, Math.floor(((row + 1) * nQueries) / rows)) - 1;
    return causal ? Math.ceil(((query + 1) * columns) / nKeys) : columns;
  });
  const line = new Uint16Array(side);
  return (/** @type {Uint32Array} */ pixels, /** @type {number} */ stride, /** @type {number} */ corner, /** @type {number} */ place, /** @type {Inks} */ inks) => {
    const from = place * rows * columns;
    for (let y = 0; y < side; y += 1) {
      const [low, high] = [down[y], Math.max(down[y + 1], down[y] + 1)];
      if (y === 0 || low !== down[y - 1] || high > low + 1) {
        for (let x = 0; x < side; x += 1) {
          const end = Math.max(across[x + 1], across[x] + 1);
          let most = across[x] < last[high - 1] ? 0 : NOT_DRAWN;
          for (let row = low; row < high && most < NOT_DRAWN; row += 1) {
            for (let column = across[x]; column < end; column += 1) {
              const code = codes[from + row * columns + column];
              if (code > most) most = code;
            }
          }
          line[x] = most;
        }
      }
      const to = corner + y * stride;
      for (let x = 0; x < side; x += 1) pixels[to + x] = inks[line[x]];
    }
  };
}
