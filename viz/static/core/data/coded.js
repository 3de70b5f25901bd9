/**
 * query, key and value in a byte a number, as viz/coded.py writes them: a step for each vector in half
 * precision, then for each number how many steps it is.
 */

import { fromHalf } from "./half.js";

/** Parts of a step that a rest counts. */
const PARTS = 16;

/**
 * The numbers of all heads.
 *
 * @param {Uint8Array} bytes  they fill their buffer
 * @param {number[]} shape  head, position, d_head
 * @returns {Float32Array}
 */
export function fromSteps(bytes, shape) {
  const [heads, positions, width] = shape;
  const numbers = new Float32Array(heads * positions * width);
  for (let place = 0; place < heads; place += 1) numbers.set(headFromSteps(bytes, shape, place).numbers, place * positions * width);
  return numbers;
}

/**
 * The numbers of one head, and the most that one of them is from the model's.
 *
 * @param {Uint8Array} bytes  of all heads; they fill their buffer
 * @param {number[]} shape  head, position, d_head
 * @param {number} place  in the head axis
 * @param {Uint8Array} [rests]  of that head, four bits a number, the first in the low half of a byte
 * @param {boolean} [quarters]  they have two bits a number: the quarter of its step that it lies in
 * @returns {{numbers: Float32Array, within: number}}
 */
export function headFromSteps(bytes, [heads, positions, width], place, rests, quarters = false) {
  const steps = fromHalf(new Uint16Array(bytes.buffer, place * positions * 2, positions));
  const codes = new Int8Array(bytes.buffer, 2 * heads * positions + place * positions * width, positions * width);
  const numbers = new Float32Array(positions * width);
  for (let i = 0; i < numbers.length; i += 1) {
    const rest = rests ? (quarters ? quarterAt(rests, i) : restAt(rests, i) / PARTS) : 0;
    numbers[i] = (codes[i] + rest) * steps[Math.floor(i / width)];
  }
  return { numbers, within: steps.reduce((most, step) => Math.max(most, step), 0) / (rests ? (quarters ? 8 : PARTS) : 2) };
}

/**
 * @param {Uint8Array} rests
 * @param {number} i
 */
function restAt(rests, i) {
  const four = (rests[i >> 1] >> (4 * (i & 1))) & 15;
  return four < 8 ? four : four - 16;
}

/**
 * The middle of a quarter, in steps.
 *
 * @param {Uint8Array} quarters
 * @param {number} i
 */
function quarterAt(quarters, i) {
  const two = (quarters[i >> 2] >> (2 * (i & 3))) & 3;
  return ((two < 2 ? two : two - 4) + 0.5) / 4;
}
