/** Attention as a model computes it: scaled dot products, mask, softmax. */

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
 * exp(score - largest) / their sum over the first `allowed` keys; 0 for the others.
 *
 * @param {Float64Array} scores
 * @param {number} allowed
 * @returns {Float64Array}
 */
export function softmax(scores, allowed = scores.length) {
  let largest = -Infinity;
  for (let key = 0; key < allowed; key += 1) if (scores[key] > largest) largest = scores[key];
  const weights = new Float64Array(scores.length);
  let sum = 0;
  for (let key = 0; key < allowed; key += 1) {
    weights[key] = Math.exp(scores[key] - largest);
    sum += weights[key];
  }
  for (let key = 0; key < allowed; key += 1) weights[key] /= sum;
  return weights;
}

/**
 * scale * query . key of one query with the first `allowed` keys, as `scoresOf` gives it.
 *
 * Four keys at a time: each part of the query is then read once for all of them.
 *
 * @param {import("./example.js").Vectors} vectors
 * @param {number} query
 * @param {number} allowed
 * @param {Float64Array} scores
 */
function fillScores({ query: queries, key: keys, width, scale }, query, allowed, scores) {
  const from = query * width;
  let key = 0;
  for (; key + 4 <= allowed; key += 4) {
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
  for (; key < allowed; key += 1) {
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
  const { nQueries, nKeys } = vectors;
  const probs = new Float32Array(nQueries * nKeys);
  const scores = new Float64Array(nKeys);
  for (let query = 0; query < nQueries; query += 1) {
    const allowed = causal ? query + 1 : nKeys;
    fillScores(vectors, query, allowed, scores);
    fillSoftmax(scores, allowed, probs, query * nKeys);
  }
  return probs;
}

/**
 * `softmax` without tables of its own.
 *
 * @param {Float64Array} scores  changed
 * @param {number} allowed
 * @param {Float32Array} weights
 * @param {number} from  where they begin
 */
function fillSoftmax(scores, allowed, weights, from) {
  let largest = -Infinity;
  for (let key = 0; key < allowed; key += 1) if (scores[key] > largest) largest = scores[key];
  let sum = 0;
  for (let key = 0; key < allowed; key += 1) sum += scores[key] = Math.exp(scores[key] - largest);
  for (let key = 0; key < allowed; key += 1) weights[from + key] = scores[key] / sum;
}
