/**
 * Queries and keys of one head in one plane, so that near means looked at. No document here.
 *
 * Yeh et al. 2023, "AttentionViz: A Global View of Transformer Attention" (arXiv 2305.03210), "Vector
 * normalization": queries times c and keys divided by c leave every dot product as it is, and the same
 * vector added to all keys changes each row of scores by a constant, which the softmax takes out. So
 * keys are moved onto the mean of the queries, and c is the one with which distance says most about
 * the dot product.
 *
 * @typedef {object} Plane
 * @property {Float64Array} x  of each query, then of each key
 * @property {Float64Array} y
 * @property {number} covered  part of the variance that the plane has
 * @property {number} c
 * @property {number} correlation  of distance and dot product, in all dimensions
 * @property {number} drawn  the same in the plane
 *
 * @import { Collected } from "../../core/data/source.js"
 */

import { cappedScore, seenOf, softmax } from "../../core/data/softmax.js";

/** Values of c that are tried: 2^(n/4). */
const TRIED = Array.from({ length: 25 }, (_, i) => 2 ** ((i - 12) / 4));
/** Pairs of query and key that the correlation is taken over. */
const PAIRS = 4000;
const ROUNDS = 120;

/** Where each text begins, in tokens, and at the end where the last ends. @param {Collected} collected */
export function startsOf({ from }) {
  const starts = [0];
  for (const { tokens } of from) starts.push(starts[starts.length - 1] + tokens.text.length);
  return starts;
}

/**
 * Queries and keys as they are compared: (token, width) each, centred on the mean of the queries.
 *
 * @param {Collected} collected
 * @param {number} c
 */
export function joined({ query, key, width }, c) {
  const means = [query, key].map((vectors) => meanOf(vectors, width));
  return {
    query: Float64Array.from(query, (value, i) => c * (value - means[0][i % width])),
    key: Float64Array.from(key, (value, i) => (value - means[1][i % width]) / c),
  };
}

/** @param {Collected} collected @returns {Plane} */
export function planeOf(collected) {
  const pairs = somePairs(collected);
  const dots = Float64Array.from(pairs, ([query, key]) => dotOf(collected, query, key));
  const tried = TRIED.map((c) => {
    const { query, key } = joined(collected, c);
    const apart = Float64Array.from(pairs, ([i, j]) => distance(query, i, key, j, collected.width));
    return { c, correlation: correlation(apart, dots) };
  });
  const { c, correlation: found } = tried.reduce((best, one) => (one.correlation < best.correlation ? one : best));
  const { query, key } = joined(collected, c);
  const all = new Float64Array(query.length + key.length);
  all.set(query);
  all.set(key, query.length);
  const plane = principal(all, collected.width);
  const nTokens = query.length / collected.width;
  const apart = Float64Array.from(pairs, ([i, j]) => Math.hypot(plane.x[i] - plane.x[nTokens + j], plane.y[i] - plane.y[nTokens + j]));
  return { ...plane, c, correlation: found, drawn: correlation(apart, dots) };
}

/**
 * Pairs of tokens of one text, those that may look at one another, spread evenly over all texts.
 *
 * @param {Collected} collected
 */
function somePairs(collected) {
  const starts = startsOf(collected);
  const pairs = /** @type {[number, number][]} */ ([]);
  for (let text = 0; text + 1 < starts.length; text += 1) {
    for (let query = starts[text]; query < starts[text + 1]; query += 1) {
      const seen = seenIn(collected, query, starts[text], starts[text + 1]);
      for (let key = seen.first; key < seen.end; key += 1) pairs.push([query, key]);
    }
  }
  const step = Math.max(1, Math.ceil(pairs.length / PAIRS));
  return pairs.filter((_, i) => i % step === 0);
}

/**
 * The keys that a query sees, among all tokens.
 *
 * @param {Collected} collected
 * @param {number} query
 * @param {number} first  the first token of its text
 * @param {number} end
 */
function seenIn({ causal, window }, query, first, end) {
  const seen = seenOf({ nKeys: end - first, window }, causal, query - first);
  return { first: first + seen.first, end: first + seen.end };
}

/** @param {Collected} collected @param {number} i @param {number} j */
function dotOf({ query, key, width }, i, j) {
  let sum = 0;
  for (let at = 0; at < width; at += 1) sum += query[i * width + at] * key[j * width + at];
  return sum;
}

/**
 * The weights of one query over the keys of its text up to the last it sees, as the model has them.
 *
 * @param {Collected} collected
 * @param {number} query  among all tokens
 * @param {number} first  the first token of its text
 * @param {number} end
 */
export function weightsOf(collected, query, first, end) {
  const seen = seenIn(collected, query, first, end);
  const scores = Float64Array.from({ length: seen.end - first }, (_, i) =>
    cappedScore(collected.scale * dotOf(collected, query, first + i), collected.softCap),
  );
  return Array.from(softmax(scores, seen.end - first, seen.first - first));
}

/** @param {Float64Array} query @param {number} i @param {Float64Array} key @param {number} j @param {number} width */
function distance(query, i, key, j, width) {
  let sum = 0;
  for (let at = 0; at < width; at += 1) sum += (query[i * width + at] - key[j * width + at]) ** 2;
  return Math.sqrt(sum);
}

/** @param {ArrayLike<number>} vectors @param {number} width */
function meanOf(vectors, width) {
  const mean = new Float64Array(width);
  for (let i = 0; i < vectors.length; i += 1) mean[i % width] += vectors[i];
  return mean.map((sum) => sum / (vectors.length / width));
}

/** Pearson's correlation; 0 where one side does not vary. @param {Float64Array} one @param {Float64Array} other */
export function correlation(one, other) {
  const [a, b] = [one, other].map((numbers) => meanOf(numbers, 1)[0]);
  let [both, left, right] = [0, 0, 0];
  for (let i = 0; i < one.length; i += 1) {
    both += (one[i] - a) * (other[i] - b);
    left += (one[i] - a) ** 2;
    right += (other[i] - b) ** 2;
  }
  return left && right ? both / Math.sqrt(left * right) : 0;
}

/**
 * The two directions in which points vary most (principal components), and the points along them.
 *
 * @param {Float64Array} points  (point, width)
 * @param {number} width
 */
export function principal(points, width) {
  const mean = meanOf(points, width);
  const centred = Float64Array.from(points, (value, i) => value - mean[i % width]);
  const covariance = covarianceOf(centred, width);
  let total = 0;
  for (let i = 0; i < width; i += 1) total += covariance[i * width + i];
  const first = leading(covariance, width, []);
  const second = leading(covariance, width, [first.direction]);
  const along = (/** @type {{direction: Float64Array}} */ { direction }) => Float64Array.from({ length: centred.length / width }, (_, i) => inner(centred, i * width, direction));
  return { x: along(first), y: along(second), covered: total ? (first.value + second.value) / total : 0 };
}

/** @param {Float64Array} centred @param {number} width */
function covarianceOf(centred, width) {
  const out = new Float64Array(width * width);
  for (let from = 0; from < centred.length; from += width) {
    for (let i = 0; i < width; i += 1) {
      const value = centred[from + i];
      for (let j = 0; j < width; j += 1) out[i * width + j] += value * centred[from + j];
    }
  }
  return out.map((sum) => sum / (centred.length / width));
}

/**
 * The direction with the largest variance that is upright to those before it, by power iteration.
 *
 * @param {Float64Array} covariance
 * @param {number} width
 * @param {Float64Array[]} before
 */
function leading(covariance, width, before) {
  // Any start that is upright to nothing in particular; the same one each time gives the same picture.
  let direction = upright(Float64Array.from({ length: width }, (_, i) => Math.sin(i + 1 + before.length)), before);
  let value = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    const next = upright(Float64Array.from({ length: width }, (_, i) => inner(covariance, i * width, direction)), before);
    value = Math.sqrt(inner(next, 0, next));
    if (!value) break;
    direction = next.map((one) => one / value);
  }
  const largest = direction.reduce((best, one) => (Math.abs(one) > Math.abs(best) ? one : best), 0);
  return { direction: largest < 0 ? direction.map((one) => -one) : direction, value };
}

/** @param {Float64Array} vector @param {Float64Array[]} before */
function upright(vector, before) {
  let left = vector;
  for (const one of before) {
    const part = inner(left, 0, one);
    left = left.map((value, i) => value - part * one[i]);
  }
  return left;
}

/** @param {Float64Array} numbers @param {number} from @param {Float64Array} direction */
function inner(numbers, from, direction) {
  let sum = 0;
  for (let i = 0; i < direction.length; i += 1) sum += numbers[from + i] * direction[i];
  return sum;
}
