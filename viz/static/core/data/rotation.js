/**
 * Rotary positions: each pair of dimensions of a query or key is turned by position x frequency
 * (Su et al. 2021). A product then depends on how far apart two tokens are, not on where they stand.
 *
 * @typedef {object} Rotary
 * @property {number} amplitude  what cosine and sine are multiplied by
 * @property {number[]} frequencies  radians a position, of dimensions i and i + their number
 */

/**
 * The numbers of one token turned back from where it stands, or on to elsewhere.
 *
 * @param {ArrayLike<number>} numbers  of one head, turned
 * @param {Rotary} rotary
 * @param {number} from  where the token stands
 * @param {number} [to]  where it is turned to
 * @returns {Float64Array}
 */
export function turnedBy(numbers, { frequencies }, from, to = 0) {
  const found = Float64Array.from(numbers);
  frequencies.forEach((frequency, i) => {
    const [first, second] = [numbers[i], numbers[i + frequencies.length]];
    const [cosine, sine] = [Math.cos(frequency * (to - from)), Math.sin(frequency * (to - from))];
    found[i] = first * cosine - second * sine;
    found[i + frequencies.length] = first * sine + second * cosine;
  });
  return found;
}

/** Query or key of one head as they are at a position. @param {ArrayLike<number>} numbers  not turned @param {Rotary} rotary @param {number} position */
export function placedAt(numbers, rotary, position) {
  const side = 2 * rotary.frequencies.length;
  return turnedBy(numbers, rotary, 0, position).map((value, i) => (i < side ? value * rotary.amplitude : value));
}

/**
 * query . key of the same two tokens, were they so far apart: the sum over turned and other dimensions.
 *
 * @param {ArrayLike<number>} query  turned, as it stands at `at`
 * @param {ArrayLike<number>} key  turned, as it stands at `keyAt`
 * @param {Rotary} rotary
 * @param {{at: number, keyAt: number, apart: number}} places
 */
export function productApart(query, key, rotary, { at, keyAt, apart }) {
  const turned = turnedBy(key, rotary, keyAt, at - apart);
  return turned.reduce((sum, value, i) => sum + value * query[i], 0);
}
