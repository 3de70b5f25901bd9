/** What a model's MLP has between its two matrices, by the names of layers/config.py. */

/**
 * The error function, at most 1.2e-7 of its complement from the truth. Source: Numerical Recipes
 * (Press et al. 1992), section 6.2, `erfcc`.
 *
 * @param {number} x
 */
export function erf(x) {
  const t = 1 / (1 + 0.5 * Math.abs(x));
  const low = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * -0.18628806)));
  const high = 0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)));
  const complement = t * Math.exp(-x * x + low + t * t * t * t * t * high);
  return x >= 0 ? 1 - complement : complement - 1;
}

/** @param {number} x */
function geluTanh(x) {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
}

/** @type {Record<string, (x: number) => number>} */
export const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  gelu_tanh: geluTanh,
  gelu_fast: geluTanh,
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
  relu: (x) => Math.max(x, 0),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};
