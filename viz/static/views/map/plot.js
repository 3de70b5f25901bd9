/**
 * Where a map stands on its canvas, and which tokens are under which pixels.
 *
 * @typedef {import("../../core/state/window.js").Window} Window
 *
 * @typedef {object} Weights  of one head
 * @property {Float32Array} probs  (query, key)
 * @property {number} nQueries
 * @property {number} nKeys
 * @property {boolean} causal
 * @property {number} largest
 * @property {Float64Array} received  by each key, from all queries
 *
 * @typedef {object} Frame  in CSS pixels
 * @property {number} left  room for the tokens that look
 * @property {number} top  room for the tokens that are looked at
 * @property {number} width  of the map
 * @property {number} height
 * @property {number} total  with all that is around it
 * @property {number} tall
 */

/** Room for sums beside and below, the bars in it, and the gap before them, CSS pixels. */
const MARGIN = { sums: 46, bar: 34, gap: 8 };
/** The largest cell, so that a short text stays a figure and no wall. */
const LARGEST_CELL = 46;
/** The longest label, and on a narrow page. */
const LONGEST = 116;
const LONGEST_NARROW = 68;
/** How far apart labels stand at least. */
const LABEL_STEP = 14;

/**
 * @param {number} room  CSS pixels there are
 * @param {number} longest  the width of the longest label
 * @param {{nQueries: number, nKeys: number}} sizes
 * @returns {Frame}
 */
export function frameFor(room, longest, { nQueries, nKeys }) {
  const label = Math.ceil(Math.max(Math.min(longest, room < 520 ? LONGEST_NARROW : LONGEST), 40));
  const left = label + 14;
  const top = label + 12;
  const shape = Math.min(Math.max(nQueries / nKeys, 0.4), 1.4);
  const width = Math.floor(Math.min(room - left - MARGIN.sums, nKeys * LARGEST_CELL));
  const height = Math.floor(width * shape);
  return { left, top, width, height, total: left + width + MARGIN.sums, tall: top + height + MARGIN.sums };
}

export function margins() {
  return MARGIN;
}

/**
 * @param {Weights["probs"]} probs
 * @param {{nQueries: number, nKeys: number, causal: boolean}} sizes
 * @returns {Weights}
 */
export function weightsOf(probs, { nQueries, nKeys, causal }) {
  const received = new Float64Array(nKeys);
  let largest = 0;
  for (let query = 0, at = 0; query < nQueries; query += 1) {
    for (let key = 0; key < nKeys; key += 1, at += 1) {
      received[key] += probs[at];
      if (probs[at] > largest) largest = probs[at];
    }
  }
  return { probs, nQueries, nKeys, causal, largest, received };
}

/**
 * The first and the end of the cells that each pixel covers.
 *
 * @param {number} from  tokens
 * @param {number} to
 * @param {number} pixels
 * @param {number} size
 */
export function cover(from, to, pixels, size) {
  const step = (to - from) / pixels;
  const first = new Int32Array(pixels);
  const end = new Int32Array(pixels);
  for (let i = 0; i < pixels; i += 1) {
    first[i] = Math.min(Math.floor(from + (i + (step < 1 ? 0.5 : 0)) * step), size - 1);
    end[i] = Math.min(Math.max(first[i] + 1, step < 1 ? 0 : Math.floor(from + (i + 1) * step)), size);
  }
  return { first, end };
}

/**
 * Fills an image with a map, each pixel the largest weight it covers.
 *
 * @param {Uint32Array} pixels
 * @param {number} width  device pixels
 * @param {number} height
 * @param {Weights} weights
 * @param {Window} window
 * @param {(weight: number) => number} inkOf
 * @param {number} blank  of cells that are not drawn
 */
export function fillMap(pixels, width, height, { probs, nQueries, nKeys, causal }, window, inkOf, blank) {
  const down = cover(window[0], window[1], height, nQueries);
  const across = cover(window[2], window[3], width, nKeys);
  for (let y = 0; y < height; y += 1) {
    const to = y * width;
    if (y > 0 && down.first[y] === down.first[y - 1] && down.end[y] === down.end[y - 1]) {
      pixels.copyWithin(to, to - width, to);
      continue;
    }
    const seen = causal ? down.end[y] : nKeys;
    for (let x = 0; x < width; x += 1) {
      if (across.first[x] >= seen) {
        pixels[to + x] = blank;
        continue;
      }
      let most = 0;
      for (let query = down.first[y]; query < down.end[y]; query += 1) {
        const row = query * nKeys;
        for (let key = across.first[x]; key < across.end[x]; key += 1) {
          if (probs[row + key] > most) most = probs[row + key];
        }
      }
      pixels[to + x] = inkOf(most);
    }
  }
}

/**
 * The strongest of the cells under a point of the map, or null beside it.
 *
 * @param {Weights} weights
 * @param {Window} window
 * @param {Frame} frame
 * @param {number} x  CSS pixels from the canvas's corner
 * @param {number} y
 * @returns {{query: number, key: number} | null}
 */
export function cellAt({ probs, nQueries, nKeys }, window, { left, top, width, height }, x, y) {
  if (x < left || y < top || x >= left + width || y >= top + height) return null;
  const down = cover(window[0], window[1], height, nQueries);
  const across = cover(window[2], window[3], width, nKeys);
  const [row, column] = [Math.floor(y - top), Math.floor(x - left)];
  const best = { query: down.first[row], key: across.first[column] };
  for (let query = down.first[row]; query < down.end[row]; query += 1) {
    for (let key = across.first[column]; key < across.end[column]; key += 1) {
      if (probs[query * nKeys + key] > probs[best.query * nKeys + best.key]) Object.assign(best, { query, key });
    }
  }
  return best;
}

/**
 * What rows and columns add up to over the cells in view.
 *
 * @param {Weights} weights
 * @param {Window} window
 */
export function sumsOf({ probs, nKeys }, window) {
  const [top, bottom, left, right] = window.map(Math.round);
  const rows = new Float64Array(bottom - top);
  const columns = new Float64Array(right - left);
  for (let query = top; query < bottom; query += 1) {
    for (let key = left; key < right; key += 1) {
      const weight = probs[query * nKeys + key];
      rows[query - top] += weight;
      columns[key - left] += weight;
    }
  }
  return { rows, columns };
}

/**
 * The tokens that have a label: all, or every so many, the same ones wherever the window is.
 *
 * @param {number} from  tokens
 * @param {number} to
 * @param {number} length  CSS pixels
 * @returns {number[]}
 */
export function labelled(from, to, length) {
  const cell = length / (to - from);
  const step = Math.max(1, Math.ceil(LABEL_STEP / cell));
  const numbers = [];
  for (let i = Math.ceil(Math.ceil(from - 0.5) / step) * step; i + 0.5 <= to; i += step) numbers.push(i);
  return numbers;
}
