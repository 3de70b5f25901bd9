/**
 * query, key and value in a byte a number, as viz/vectors.py writes them: a step for each vector in half
 * precision, then for each number how many steps it is.
 */
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
 * @param {Uint8Array} [rests]  of that head: the part of its step that each number lies in, and is in the middle of
 * @param {number} [bits]  of a rest, the first of a byte in its low bits
 * @returns {{numbers: Float32Array, within: number}}
 */
export function headFromSteps(bytes, [heads, positions, width], place, rests, bits = 0) {
  const steps = fromHalf(new Uint16Array(bytes.buffer, place * positions * 2, positions));
  const codes = new Int8Array(bytes.buffer, 2 * heads * positions + place * positions * width, positions * width);
  const numbers = new Float32Array(positions * width);
  const parts = 2 ** bits;
  for (let position = 0, i = 0; position < positions; position += 1) {
    const step = steps[position];
    for (const end = i + width; i < end; i += 1) numbers[i] = (codes[i] + (rests ? (partAt(rests, i, bits) + 0.5) / parts : 0)) * step;
  }
  return { numbers, within: steps.reduce((most, step) => Math.max(most, step), 0) / 2 ** (bits + 1) };
}

/** A signed number of so many bits, the first of a byte in its low bits. @param {Uint8Array} bytes @param {number} i @param {number} bits */
function partAt(bytes, i, bits) {
  const part = (bytes[(i * bits) >> 3] >> ((i * bits) & 7)) & ((1 << bits) - 1);
  return part < 1 << (bits - 1) ? part : part - (1 << bits);
}

/**
 * IEEE 754 binary16 to binary32: the same sign and fraction with an exponent that begins 112 lower,
 * which a product mends; that of infinity and NaN is 31.
 *
 * @param {Uint16Array} halves
 * @returns {Float32Array}
 */
export function fromHalf(halves) {
  const numbers = new Float32Array(halves.length);
  const bits = new Uint32Array(numbers.buffer);
  for (let i = 0; i < bits.length; i += 1) {
    const half = halves[i];
    bits[i] = ((half & 0x8000) << 16) | ((half & 0x7fff) << 13);
    numbers[i] *= 2 ** 112;
    if ((half & 0x7c00) === 0x7c00) numbers[i] *= half & 0x3ff ? NaN : Infinity;
  }
  return numbers;
}

/**
 * Numbers with what rounding to half precision took from them.
 *
 * @param {Float32Array} halves
 * @param {ArrayLike<number>} rest  in 256ths of the last place of each half
 */
export function refined(halves, rest) {
  const bits = new Uint32Array(halves.slice().buffer);
  return halves.map((half, i) => {
    const exponent = Math.max(((bits[i] >>> 23) & 255) - 127, -14);
    return half + rest[i] * 2 ** (exponent - 18);
  });
}
