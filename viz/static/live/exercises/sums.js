/** The arithmetic of the exercises. */

/**
 * @param {ArrayLike<number>} one
 * @param {ArrayLike<number>} other
 */
export function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i += 1) sum += one[i] * other[i];
  return sum;
}

/** @param {ArrayLike<number>} scores */
export function softmax(scores) {
  const all = Array.from(scores);
  const largest = all.reduce((one, other) => Math.max(one, other), -Infinity);
  const powers = all.map((score) => Math.exp(score - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/** @param {ArrayLike<number>} values */
export function mean(values) {
  return Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Kullback-Leibler divergence of two rows of logits, in nats.
 *
 * @param {ArrayLike<number>} clean
 * @param {ArrayLike<number>} changed
 */
export function divergence(clean, changed) {
  const [one, other] = [softmax(clean), softmax(changed)];
  return one.reduce((sum, p, i) => (p > 0 ? sum + p * Math.log(p / other[i]) : sum), 0);
}

/** The place of the largest. @param {ArrayLike<number>} values */
export function largestAt(values) {
  const all = Array.from(values);
  return all.indexOf(Math.max(...all));
}

/**
 * The mean weight of a head on the token `step` further, over the queries that have one.
 *
 * @param {import("../../engine/engine.js").Numbers} probs  of a layer
 * @param {number} head
 * @param {number} step
 */
export function meanWeight({ shape: [, n], values }, head, step) {
  const found = [];
  for (let query = Math.max(0, -step); query < n - Math.max(0, step); query += 1) found.push(values[(head * n + query) * n + query + step]);
  return mean(found);
}

/**
 * Lists of different words, by the generator of Park and Miller from seed 1.
 *
 * @param {string[]} words
 * @param {number} count
 * @param {number} length
 */
export function draws(words, count, length) {
  let state = 1;
  return Array.from({ length: count }, () => {
    /** @type {string[]} */
    const drawn = [];
    while (drawn.length < length) {
      state = (state * 48271) % 2147483647;
      const word = words[state % words.length];
      if (!drawn.includes(word)) drawn.push(word);
    }
    return drawn;
  });
}
