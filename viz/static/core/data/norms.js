/** LayerNorm and RMSNorm: all numbers of a vector, in double precision. */

import { weightOf } from "./source.js";

/**
 * @typedef {object} Norm  of a model, and its weights
 * @property {"layer" | "rms"} kind
 * @property {ArrayLike<number>} weight  as they are stored
 * @property {ArrayLike<number> | null} bias
 * @property {boolean} plusOne  what is multiplied by is 1 + weight
 * @property {number} eps
 *
 * @typedef {object} Normed  one vector
 * @property {number} mean  that is taken off; of RMSNorm 0
 * @property {number} variance  the mean square of what is left
 * @property {Float32Array} values  rounded as the model holds them
 */

/**
 * @param {import("./source.js").Source} source
 * @param {string} name
 * @param {number | null} layer
 * @returns {Promise<Norm>}
 */
export async function normNamed(source, name, layer) {
  const [weight, bias] = await Promise.all([weightOf(source, `${name}.weight`, layer, null), source.weights(`${name}.bias`, layer, null)]);
  const { normKind: kind, plusOne, eps } = source.shape.built;
  return { kind, weight, bias: bias && bias.values, plusOne, eps };
}

/**
 * LayerNorm: (x − mean) / √(variance + ε) · γ + β. RMSNorm: x / √(mean square + ε) · γ.
 *
 * @param {ArrayLike<number>} x
 * @param {Norm} norm
 * @returns {Normed}
 */
export function normed(x, { kind, weight, bias, plusOne, eps }) {
  const numbers = Array.from(x);
  const meanOf = (/** @type {number[]} */ of) => of.reduce((sum, value) => sum + value, 0) / of.length;
  const mean = kind === "rms" ? 0 : meanOf(numbers);
  const variance = meanOf(numbers.map((value) => (value - mean) ** 2));
  const scale = 1 / Math.sqrt(variance + eps);
  const one = plusOne ? 1 : 0;
  return { mean, variance, values: Float32Array.from(numbers, (value, i) => (value - mean) * scale * (one + weight[i]) + (bias ? bias[i] : 0)) };
}
