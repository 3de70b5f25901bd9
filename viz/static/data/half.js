/** Half-precision numbers, as query and key are stored, unpacked to single precision. */

/** @type {Float32Array | null} */
let table = null;

/** Every half-precision number by its bits (IEEE 754 binary16). */
function values() {
  if (table) return table;
  table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits += 1) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
}

/**
 * @param {Uint16Array} bits
 * @returns {Float32Array}
 */
export function fromHalf(bits) {
  const lookup = values();
  const numbers = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i += 1) numbers[i] = lookup[bits[i]];
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
