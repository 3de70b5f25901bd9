/** Comparing numbers, and small texts to compare them on. */

import assert from "node:assert/strict";

/**
 * Every number within `tolerance` of the one that is expected.
 *
 * @param {Iterable<number>} actual
 * @param {number[]} expected
 * @param {number} [tolerance]
 */
export function assertNear(actual, expected, tolerance = 1e-12) {
  const numbers = Array.from(actual);
  assert.equal(numbers.length, expected.length);
  numbers.forEach((number, i) => {
    const apart = Math.abs(number - expected[i]);
    assert.ok(apart <= tolerance || Object.is(number, expected[i]), `[${i}] ${number}, expected ${expected[i]}`);
  });
}

/** A token starting with [ is a special one, with ## a piece, and "|" begins the second text. */
export function tokensOf(...words) {
  const second = words.indexOf("|");
  const all = words.filter((word) => word !== "|");
  return {
    text: all.map((word) => word.replace(/^##/, "")),
    raw: all,
    special: all.map((word) => Number(/^\[.+\]$/.test(word))),
    segment: all.map((_, i) => Number(second >= 0 && i >= second)),
    piece: all.map((word) => Number(word.startsWith("##"))),
  };
}

/** A layer with these codes: heads of rows of keys. */
export function layerOf(heads) {
  const [nHeads, nQueries, nKeys] = [heads.length, heads[0].length, heads[0][0].length];
  return { number: 0, nHeads, nQueries, nKeys, size: nQueries, codes: Uint8Array.from(heads.flat(2)) };
}
