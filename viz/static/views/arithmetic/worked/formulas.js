/** Activations as a person reads them, with the number put in. */

import { ACTIVATIONS } from "../../../core/data/activations.js";

/** @type {Record<string, (x: number) => (string | number)[]>} */
const WRITTEN = {
  gelu: (x) => ["½ _x_ (1 + erf(_x_ / √2)) = ½ × ", x, " × (1 + erf(", x / Math.SQRT2, "))"],
  gelu_tanh: (x) => ["½ _x_ (1 + tanh(√(2/π) (_x_ + 0.044715 _x_³))) = ½ × ", x, " × (1 + tanh(", Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3), "))"],
  quick_gelu: (x) => ["_x_ / (1 + exp(−1.702 _x_)) = ", x, " / (1 + ", Math.exp(-1.702 * x), ")"],
  relu: (x) => ["max(_x_, 0) = max(", x, ", 0)"],
  silu: (x) => ["_x_ / (1 + exp(−_x_)) = ", x, " / (1 + ", Math.exp(-x), ")"],
  tanh: (x) => ["tanh(_x_) = tanh(", x, ")"],
};

/**
 * @param {string} activation
 * @param {number} x
 * @returns {import("./steps.js").Step}
 */
export function activationStep(activation, x) {
  const value = ACTIVATIONS[activation](x);
  const written = (WRITTEN[activation === "gelu_fast" ? "gelu_tanh" : activation] ?? (() => [`${activation}(_x_)`]))(x);
  const says = "Without it two matrices in a row would be one. It lets numbers above zero through and holds back those below.";
  return { id: "activation", title: `Activation: ${activation}`, says, sum: null, lines: [[...written, " = ", value]], value };
}
