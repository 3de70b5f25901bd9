/**
 * Which rows of tokens are in sight.
 *
 * @typedef {object} Span  rows [first, end)
 * @property {number} first
 * @property {number} end
 */

/**
 * The rows that touch a window.
 *
 * @param {Float64Array} tops
 * @param {number} from
 * @param {number} to
 * @returns {Span}
 */
export function spanOf(tops, from, to) {
  const n = tops.length - 1;
  let first = 0;
  while (first < n && tops[first + 1] < from) first += 1;
  let end = first;
  while (end < n && tops[end] < to) end += 1;
  return { first, end };
}
