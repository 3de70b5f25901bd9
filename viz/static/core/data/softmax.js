/** Attention as a model computes it: scaled dot products, soft cap, mask, softmax. */

/**
 * The keys that a query sees: from the first one on, up to before the end.
 *
 * @param {Pick<import("./example.js").Vectors, "nKeys" | "window">} vectors
 * @param {boolean} causal
 * @param {number} query
 */
export function seenOf({ nKeys, window }, causal, query) {
  const [before, after] = window ?? [Infinity, Infinity];
  return { first: Math.max(0, query - before), end: Math.min(nKeys, query + 1 + (causal ? 0 : after)) };
}

/**
 * A score as the softmax gets it: squeezed into -cap to cap, where the model does that.
 *
 * @param {number} score
 * @param {number | null} [cap]
 */
export function cappedScore(score, cap) {
  return cap ? cap * Math.tanh(score / cap) : score;
}

/**
 * scale * query . key of one query with every key.
 *
 * @param {import("./example.js").Vectors} vectors
 * @param {number} query
 * @returns {Float64Array}
 */
export function scoresOf({ query: queries, key: keys, nKeys, width, scale }, query) {
  const scores = new Float64Array(nKeys);
  const from = query * width;
  for (let key = 0; key < nKeys; key += 1) {
    let sum = 0;
    const at = key * width;
    for (let i = 0; i < width; i += 1) sum += queries[from + i] * keys[at + i];
    scores[key] = sum * scale;
  }
  return scores;
}

/**
 * exp(score - largest) / their sum over the keys from `first` to before `end`; 0 for the others.
 *
 * @param {Float64Array} scores
 * @param {number} [end]
 * @param {number} [first]
 * @returns {Float64Array}
 */
export function softmax(scores, end = scores.length, first = 0) {
  let largest = -Infinity;
  for (let key = first; key < end; key += 1) if (scores[key] > largest) largest = scores[key];
  const weights = new Float64Array(scores.length);
  let sum = 0;
  for (let key = first; key < end; key += 1) {
    weights[key] = Math.exp(scores[key] - largest);
    sum += weights[key];
  }
  for (let key = first; key < end; key += 1) weights[key] /= sum;
  return weights;
}

/**
 * scale * query . key of one query with the keys that it sees, as `scoresOf` gives it.
 *
 * Four keys at a time: each part of the query is then read once for all of them.
 *
 * @param {import("./example.js").Vectors} vectors
 * @param {number} query
 * @param {{first: number, end: number}} seen
 * @param {Float64Array} scores
 */
function fillScores({ query: queries, key: keys, width, scale }, query, { first, end }, scores) {
  const from = query * width;
  let key = first;
  for (; key + 4 <= end; key += 4) {
    let [a, b, c, d] = [0, 0, 0, 0];
    const [at, second, third, fourth] = [key * width, (key + 1) * width, (key + 2) * width, (key + 3) * width];
    for (let i = 0; i < width; i += 1) {
      const part = queries[from + i];
      a += part * keys[at + i];
      b += part * keys[second + i];
      c += part * keys[third + i];
      d += part * keys[fourth + i];
    }
    scores[key] = a * scale;
    scores[key + 1] = b * scale;
    scores[key + 2] = c * scale;
    scores[key + 3] = d * scale;
  }
  for (; key < end; key += 1) {
    let sum = 0;
    for (let i = 0; i < width; i += 1) sum += queries[from + i] * keys[key * width + i];
    scores[key] = sum * scale;
  }
}

/**
 * The weights of one head, (query, key).
 *
 * @param {import("./example.js").Vectors} vectors
 * @param {boolean} causal
 * @returns {Float32Array}
 */
export function attend(vectors, causal) {
  const { nQueries, nKeys, softCap } = vectors;
  const probs = new Float32Array(nQueries * nKeys);
  const scores = new Float64Array(nKeys);
  for (let query = 0; query < nQueries; query += 1) {
    const seen = seenOf(vectors, causal, query);
    fillScores(vectors, query, seen, scores);
    if (softCap) for (let key = seen.first; key < seen.end; key += 1) scores[key] = cappedScore(scores[key], softCap);
    fillSoftmax(scores, seen, probs, query * nKeys);
  }
  return probs;
}

/**
 * `softmax` without tables of its own.
 *
 * @param {Float64Array} scores  changed
 * @param {{first: number, end: number}} seen
 * @param {Float32Array} weights
 * @param {number} from  where they begin
 */
function fillSoftmax(scores, { first, end }, weights, from) {
  let largest = -Infinity;
  for (let key = first; key < end; key += 1) if (scores[key] > largest) largest = scores[key];
  let sum = 0;
  for (let key = first; key < end; key += 1) sum += scores[key] = Math.exp(scores[key] - largest);
  for (let key = first; key < end; key += 1) weights[from + key] = scores[key] / sum;
}
