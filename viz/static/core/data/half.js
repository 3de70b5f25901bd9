/** Half-precision numbers, as query and key are stored, unpacked to single precision. */

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
