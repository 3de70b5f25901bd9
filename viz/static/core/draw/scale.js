/**
 * From numbers to places, and round numbers to mark them with.
 *
 * @typedef {object} Axis
 * @property {number} low  the number at `from`
 * @property {number} high  the number at `to`
 * @property {number} from  CSS pixels
 * @property {number} to
 */

/**
 * @param {Axis} axis
 * @param {number} value
 */
export function placeOn({ low, high, from, to }, value) {
  return from + ((value - low) / (high - low)) * (to - from);
}

/**
 * Round numbers from low to high, about as many as asked for: steps of 1, 2 or 5 times a power of ten.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough * (1 - 1e-9)) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  // Multiplied and not added up, and without the noise of the last digits.
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * The smallest number of these steps that is at least as large as all values.
 *
 * @param {number} largest
 */
export function roundTop(largest) {
  if (!(largest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(largest));
  return power * ([1, 1.5, 2, 3, 4, 5, 6, 8].find((factor) => factor * power >= largest) ?? 10);
}
