/** LayerNorm and RMSNorm worked out: one number of a vector in steps. */

import { normed } from "../../../core/data/norms.js";
import { written } from "../../../core/text/numbers.js";
import { lineStep, sumStep, total } from "./steps.js";

/**
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./steps.js").Way} Way
 * @typedef {import("../../../core/data/norms.js").Norm} Norm
 */

/**
 * @typedef {object} Given
 * @property {ArrayLike<number>} x  the whole vector
 * @property {number} dimension
 * @property {Norm} norm
 * @property {(dimension: number) => Way} [to]  where a dimension of x is worked out
 * @property {string} [whose]  whose numbers they are
 */

/**
 * A norm of one dimension: of LayerNorm mean, variance, the same for every vector, learned scale.
 *
 * @param {Given} given
 * @returns {Step[]}
 */
export function normSteps(given) {
  const { x, dimension, norm } = given;
  const { mean, variance } = normed(x, norm);
  const scale = 1 / Math.sqrt(variance + norm.eps);
  const normal = (x[dimension] - mean) * scale;
  const own = { mean, variance, scale, normal };
  return [...(norm.kind === "rms" ? rmsSteps(given, own) : layerSteps(given, own)), learned(normal, dimension, norm)];
}

/**
 * @param {Given} given
 * @param {(value: number) => number} f
 */
function named({ x, to }, f) {
  return Array.from(x, (one, i) => ({ name: `dimension ${i}`, factors: [], value: f(one), ...(to && { to: to(i) }) }));
}

/**
 * @param {Given} given
 * @param {{mean: number, variance: number, scale: number, normal: number}} own
 * @returns {Step[]}
 */
function layerSteps(given, { mean, variance, scale, normal }) {
  const { x, dimension, norm, whose = "of this token" } = given;
  const width = x.length;
  const numbers = Array.from(x);
  const square = total(numbers.map((one) => (one - mean) ** 2));
  return [
    {
      ...sumStep("mean", "Mean", `LayerNorm first adds up all ${width} numbers ${whose} and divides by ${width}.`, named(given, (one) => one)),
      lines: [["_mean_ = ", total(numbers), ` / ${width} = `, mean]],
      value: mean,
    },
    {
      ...sumStep("variance", "Variance", "How far the numbers lie from their mean: the mean of the squares of the distances.", named(given, (one) => (one - mean) ** 2)),
      lines: [["_variance_ = ", square, ` / ${width} = `, variance]],
      value: variance,
    },
    lineStep(
      "normal",
      "Shift and scale",
      "After this the numbers of every token have mean 0 and variance 1. ε keeps the root away from 0.",
      [
        ["(_x_ − _mean_) / √(_variance_ + ε) = (", x[dimension], " − ", mean, ") / √(", variance, ` + ${written(norm.eps)})`],
        ["= ", x[dimension] - mean, " × ", scale, " = ", normal],
      ],
      normal,
    ),
  ];
}

/**
 * @param {Given} given
 * @param {{variance: number, scale: number, normal: number}} own
 * @returns {Step[]}
 */
function rmsSteps(given, { variance, scale, normal }) {
  const { x, dimension, norm, whose = "of this token" } = given;
  const width = x.length;
  return [
    {
      ...sumStep("square", "Mean square", `RMSNorm squares all ${width} numbers ${whose}, adds them up and divides by ${width}. No mean is taken off.`, named(given, (one) => one ** 2)),
      lines: [["_mean square_ = ", variance * width, ` / ${width} = `, variance]],
      value: variance,
    },
    lineStep(
      "normal",
      "Scale",
      "After this the numbers of every token have a mean square of 1. ε keeps the root away from 0.",
      [
        ["_x_ / √(_mean square_ + ε) = ", x[dimension], " / √(", variance, ` + ${written(norm.eps)})`],
        ["= ", x[dimension], " × ", scale, " = ", normal],
      ],
      normal,
    ),
  ];
}

/**
 * @param {number} normal
 * @param {number} dimension
 * @param {Norm} norm
 * @returns {Step}
 */
function learned(normal, dimension, { weight, bias, plusOne }) {
  const scaled = normal * ((plusOne ? 1 : 0) + weight[dimension]);
  const value = scaled + (bias ? bias[dimension] : 0);
  const factor = plusOne ? [" × (1 + ", weight[dimension], ")"] : [" × ", weight[dimension]];
  const shift = bias ? [" + ", bias[dimension]] : [];
  const formula = `× ${plusOne ? "(1 + γ)" : "γ"}${bias ? " + β" : ""} = `;
  const has = bias ? "a γ and a β of its own" : "a γ of its own";
  const stored = plusOne ? " γ is how far the factor is from 1." : "";
  return lineStep("learned", bias ? "Learned scale and shift" : "Learned scale", `Each dimension has ${has}, the same for all tokens.${stored}`, [[formula, normal, ...factor, ...shift, " = ", value]], value);
}
