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
 * The weights of one head, (query, key).
 *
 * @param {import("./example.js").Vectors} vectors
 * @param {boolean} causal
 * @returns {Float32Array}
 */
export function attend(vectors, causal) {
  const { nQueries, nKeys } = vectors;
  const probs = new Float32Array(nQueries * nKeys);
  for (let query = 0; query < nQueries; query += 1) {
    const allowed = causal ? query + 1 : nKeys;
    probs.set(softmax(scoresOf(vectors, query), allowed), query * nKeys);
  }
  return probs;
}
