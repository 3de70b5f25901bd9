/** What a model's MLP has between its two matrices, on tensors. */

import { ACTIVATIONS } from "../core/data/activations.js";

/**
 * activation(x).
 *
 * @param {import("./tensor.js").Tensor} x
 * @param {string} activation
 * @returns {import("./tensor.js").Tensor}
 */
export function activate({ shape, values }, activation) {
  const f = ACTIVATIONS[activation];
  const out = new Float32Array(values.length);
  for (let i = 0; i < out.length; i += 1) out[i] = f(values[i]);
  return { shape, values: out };
}
