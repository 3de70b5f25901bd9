/**
 * The part of a map that is seen, in tokens: [first query, end, first key, end], with fractions.
 *
 * @typedef {[number, number, number, number]} Window
 * @typedef {{nQueries: number, nKeys: number}} Sizes
 */

/** The fewest tokens a side shows. */
const FEWEST = 4;

/** @param {Sizes} sizes @returns {Window} */
export function whole({ nQueries, nKeys }) {
  return [0, nQueries, 0, nKeys];
}

/** @param {Window} window @param {Sizes} sizes */
export function isWhole(window, sizes) {
  const all = whole(sizes);
  return window.every((edge, i) => Math.abs(edge - all[i]) < 0.005);
}

/**
 * The window moved and shrunk as far as it must be to lie inside the map.
 *
 * @param {Window} window
 * @param {Sizes} sizes
 * @returns {Window}
 */
export function inside([top, bottom, left, right], { nQueries, nKeys }) {
  return [...span(top, bottom, nQueries), ...span(left, right, nKeys)];
}

/** @param {number} from @param {number} to @param {number} size @returns {[number, number]} */
function span(from, to, size) {
  const length = Math.min(Math.max(to - from, Math.min(FEWEST, size)), size);
  const start = Math.min(Math.max(from, 0), size - length);
  return [round(start), round(start + length)];
}

/** As the address has it. @param {number} edge */
function round(edge) {
  return Math.round(edge * 100) / 100;
}

/**
 * The window `factor` times as large, with what lies at a point left where it is.
 *
 * @param {Window} window
 * @param {number} factor
 * @param {number} query  the point, in tokens
 * @param {number} key
 * @param {Sizes} sizes
 * @returns {Window}
 */
export function zoomed([top, bottom, left, right], factor, query, key, sizes) {
  const tall = clamped((bottom - top) * factor, sizes.nQueries) / (bottom - top);
  const wide = clamped((right - left) * factor, sizes.nKeys) / (right - left);
  const [q, k] = [query, key];
  return inside([q - (q - top) * tall, q + (bottom - q) * tall, k - (k - left) * wide, k + (right - k) * wide], sizes);
}

/** @param {number} length @param {number} size */
function clamped(length, size) {
  return Math.min(Math.max(length, Math.min(FEWEST, size)), size);
}

/** @param {Window} window @param {number} queries @param {number} keys @param {Sizes} sizes @returns {Window} */
export function moved([top, bottom, left, right], queries, keys, sizes) {
  return inside([top + queries, bottom + queries, left + keys, right + keys], sizes);
}

/**
 * The window, moved so that a cell is in it.
 *
 * @param {Window} window
 * @param {number} query
 * @param {number} key
 * @param {Sizes} sizes
 */
export function holding(window, query, key, sizes) {
  const [top, bottom, left, right] = window;
  const down = Math.min(query - top, 0) || Math.max(query + 1 - bottom, 0);
  const across = Math.min(key - left, 0) || Math.max(key + 1 - right, 0);
  return down || across ? moved(window, down, across, sizes) : window;
}

/** @param {Window | null} window */
export function writeWindow(window) {
  return window ? window.join("-") : "";
}

/** @param {string} text @param {Sizes} sizes @returns {Window | undefined} */
export function readWindow(text, sizes) {
  if (!/^\d+(\.\d+)?(-\d+(\.\d+)?){3}$/.test(text)) return undefined;
  const [top, bottom, left, right] = text.split("-").map(Number);
  if (!(top < bottom && left < right && bottom <= sizes.nQueries && right <= sizes.nKeys)) return undefined;
  return inside([top, bottom, left, right], sizes);
}
