/**
 * A number worked out: steps, each a sum of named terms, lines of a formula, or both. No document here.
 *
 * Everything is computed in double precision from the single-precision numbers of the run.
 *
 * @typedef {Partial<import("../../../core/state/state.js").State>} Way  where a term is worked out itself
 *
 * @typedef {object} Term
 * @property {string} name
 * @property {number[]} factors  that it is the product of; none: a number as it is
 * @property {number} value
 * @property {Way} [to]
 *
 * @typedef {object} Step
 * @property {string} id
 * @property {string} title
 * @property {string} says
 * @property {{factors: string[], terms: Term[]} | null} sum
 * @property {(string | number)[][]} lines  letters in italics stand between underscores
 * @property {number} value  what it comes to
 *
 * @typedef {object} Norm  LayerNorm of one vector
 * @property {number} mean
 * @property {number} variance
 * @property {Float32Array} values  rounded as the model holds them
 */

import { written } from "../../../core/text/numbers.js";

/**
 * A step that is a sum: its last line says what it comes to.
 *
 * @param {string} id
 * @param {string} title
 * @param {string} says
 * @param {Term[]} terms
 * @param {string[]} [factors]  names of the factors of a product
 * @returns {Step}
 */
export function sumStep(id, title, says, terms, factors = []) {
  return { id, title, says, sum: { factors, terms }, lines: [], value: total(terms.map(({ value }) => value)) };
}

/**
 * @param {string} id
 * @param {string} title
 * @param {string} says
 * @param {(string | number)[][]} lines
 * @param {number} value
 * @returns {Step}
 */
export function lineStep(id, title, says, lines, value) {
  return { id, title, says, sum: null, lines, value };
}

/** @param {Iterable<number>} numbers */
export function total(numbers) {
  let sum = 0;
  for (const number of numbers) sum += number;
  return sum;
}

/**
 * (x − mean) / √(variance + ε) · γ + β.
 *
 * @param {ArrayLike<number>} x
 * @param {ArrayLike<number>} weight
 * @param {ArrayLike<number>} bias
 * @param {number} eps
 * @returns {Norm}
 */
export function layerNorm(x, weight, bias, eps) {
  const numbers = Array.from(x);
  const mean = total(numbers) / numbers.length;
  const variance = total(numbers.map((value) => (value - mean) ** 2)) / numbers.length;
  const scale = 1 / Math.sqrt(variance + eps);
  return { mean, variance, values: Float32Array.from(numbers, (value, i) => (value - mean) * scale * weight[i] + bias[i]) };
}

/**
 * LayerNorm of one dimension in four steps: mean, variance, the same for every vector, learned scale.
 *
 * @param {object} given
 * @param {ArrayLike<number>} given.x  the whole vector
 * @param {number} given.dimension
 * @param {ArrayLike<number>} given.weight
 * @param {ArrayLike<number>} given.bias
 * @param {number} given.eps
 * @param {(dimension: number) => Way} [given.to]  where a dimension of x is worked out
 * @returns {Step[]}
 */
export function layerNormSteps({ x, dimension, weight, bias, eps, to }) {
  const numbers = Array.from(x);
  const { mean, variance } = layerNorm(x, weight, bias, eps);
  const width = numbers.length;
  const scale = 1 / Math.sqrt(variance + eps);
  const normal = (numbers[dimension] - mean) * scale;
  const value = normal * weight[dimension] + bias[dimension];
  const sum = total(numbers);
  const square = total(numbers.map((one) => (one - mean) ** 2));
  const named = (/** @type {(value: number, i: number) => number} */ f) =>
    numbers.map((one, i) => ({ name: `dimension ${i}`, factors: [], value: f(one, i), ...(to && { to: to(i) }) }));
  return [
    {
      ...sumStep("mean", "Mean", `LayerNorm first adds up all ${width} numbers of this token and divides by ${width}.`, named((one) => one)),
      lines: [["_mean_ = ", sum, ` / ${width} = `, mean]],
      value: mean,
    },
    {
      ...sumStep("variance", "Variance", "How far the numbers lie from their mean: the mean of the squares of the distances.", named((one) => (one - mean) ** 2)),
      lines: [["_variance_ = ", square, ` / ${width} = `, variance]],
      value: variance,
    },
    lineStep(
      "normal",
      "Shift and scale",
      "After this the numbers of every token have mean 0 and variance 1. ε keeps the root away from 0.",
      [
        ["(_x_ − _mean_) / √(_variance_ + ε) = (", numbers[dimension], " − ", mean, ") / √(", variance, ` + ${written(eps)})`],
        ["= ", numbers[dimension] - mean, " × ", scale, " = ", normal],
      ],
      normal,
    ),
    lineStep("learned", "Learned scale and shift", "Each dimension has a γ and a β of its own, the same for all tokens.", [["× γ + β = ", normal, " × ", weight[dimension], " + ", bias[dimension], " = ", value]], value),
  ];
}

/**
 * The largest terms by size, and the rest of them added up.
 *
 * @param {Term[]} terms
 * @param {number} most  all are shown where there are hardly more
 * @returns {{shown: Term[], rest: {count: number, value: number} | null}}
 */
export function largest(terms, most) {
  if (terms.length <= most + 2) return { shown: terms, rest: null };
  const sorted = [...terms].sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const hidden = sorted.slice(most);
  return { shown: sorted.slice(0, most), rest: { count: hidden.length, value: total(hidden.map(({ value }) => value)) } };
}
