/**
 * Features of a vector, by a dictionary as `_features` of viz/live.py writes it: with W and b of the encoder,
 *
 *     pre = x·W + b,  activation = pre where it is above its threshold and among the k largest, else 0
 *     vector = activations · directions + bias + error
 *
 * @import { Numbers } from "../core/data/source.js"
 * @import { Weights } from "./model.js"
 *
 * @typedef {object} Dictionary
 * @property {[string, number]} reads  a quantity and its layer
 * @property {[string, number]} writes
 * @property {number} k  how many are active at most; 0: as many as are above their thresholds
 */

/**
 * What each active feature, the bias and the error are of a vector.
 *
 * @param {Dictionary} dictionary
 * @param {Weights} weights
 * @param {Float32Array} x  what features are read from
 * @param {Float32Array} whole  what they are parts of
 * @returns {Numbers & {names: string[]}}
 */
export function featuresOf({ writes: [, layer], k }, weights, x, whole) {
  const [thresholds, bias] = [weights.find("features.threshold"), weights.find("features.b_dec")];
  const directions = weights.get("features.directions");
  const pre = weights.get("features.encoder").times(x, 1, weights.find("features.b_enc"));
  const above = Array.from(pre.keys()).filter((i) => pre[i] > (thresholds?.[i] ?? 0));
  const active = k ? above.sort((one, other) => pre[other] - pre[one]).slice(0, k) : above;
  const width = whole.length;
  const values = new Float32Array((active.length + 2) * width);
  const error = Float64Array.from(whole, (value, i) => value - (bias?.[i] ?? 0));
  active.forEach((feature, row) => {
    const direction = directions.slice(feature);
    for (let i = 0; i < width; i += 1) {
      values[row * width + i] = pre[feature] * direction[i];
      error[i] -= pre[feature] * direction[i];
    }
  });
  values.set(bias ?? [], active.length * width);
  values.set(error, (active.length + 1) * width);
  const names = [...active.map((feature) => `feature ${layer}-${feature}`), `feature bias ${layer}`, `feature error ${layer}`];
  return { names, shape: [names.length, width], values };
}
