/**
 * What the stories of numbers have in common: rows of quantities and weights at one place, and sums of
 * products of them.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./steps.js").Term} Term
 * @typedef {import("./steps.js").Way} Way
 *
 * @typedef {object} Place
 * @property {number} layer
 * @property {number} head
 * @property {number} position
 * @property {number} dimension
 *
 * @typedef {object} Read  the vector that a matrix reads
 * @property {Float32Array} x
 * @property {Step[]} steps  before it
 * @property {(dimension: number) => Way} to
 */

import { layerNorm, lineStep, sumStep } from "./steps.js";

export class Teller {
  /**
   * @param {import("../../../core/data/source.js").Source} source
   * @param {import("../../../core/data/source.js").Built} built
   * @param {import("../../../core/data/data.js").Tokens} tokens
   * @param {Place} place
   */
  constructor(source, built, tokens, place) {
    this.source = source;
    this.built = built;
    this.tokens = tokens;
    this.place = place;
    this.eps = built.eps;
  }

  /**
   * A quantity (position, …) at the position.
   *
   * @param {string} quantity
   * @param {number | null} [layer]
   */
  async row(quantity, layer = this.place.layer) {
    const { shape, values } = await this.source.read(quantity, layer);
    const width = values.length / shape[0];
    return values.subarray(this.place.position * width, (this.place.position + 1) * width);
  }

  /**
   * A quantity (head, position, …) of one head at the position.
   *
   * @param {string} quantity
   * @param {number} [head]
   */
  async headRow(quantity, head = this.place.head) {
    const { shape: [, positions, width], values } = await this.source.read(quantity, this.place.layer);
    const from = (head * positions + this.place.position) * width;
    return values.subarray(from, from + width);
  }

  /**
   * A quantity (head, position, …) of one head, all positions.
   *
   * @param {string} quantity
   */
  async ofHead(quantity) {
    const { shape: [heads], values } = await this.source.read(quantity, this.place.layer);
    const size = values.length / heads;
    return values.subarray(this.place.head * size, (this.place.head + 1) * size);
  }

  /**
   * A weight, or one row of it.
   *
   * @param {string} name
   * @param {number | null} [row]
   * @param {number | null} [layer]
   */
  async weight(name, row = null, layer = this.place.layer) {
    const found = await this.source.weights(name, layer, row);
    if (!found) throw new RangeError(`this model has no weight ${name}`);
    return found.values;
  }

  /**
   * One number of a bias; null where there is none.
   *
   * @param {string} name
   * @param {number} index
   * @param {number | null} [layer]
   */
  async bias(name, index, layer = this.place.layer) {
    const found = await this.source.weights(name, layer, null);
    return found ? found.values[index] : null;
  }

  /**
   * @param {string} name  of a LayerNorm
   * @param {number | null} [layer]
   */
  async norm(name, layer = this.place.layer) {
    const [weight, bias] = await Promise.all([this.weight(`${name}.weight`, null, layer), this.weight(`${name}.bias`, null, layer)]);
    return { weight, bias };
  }

  /** Where a dimension of what enters the layer is worked out. @returns {(dimension: number) => Way} */
  get entering() {
    const { layer } = this.place;
    return layer ? to("resid_post", { layer: layer - 1 }) : to("embed");
  }

  /**
   * What W_Q, W_K and W_V read, or W_in: the stream, or in a pre-norm model its LayerNorm.
   *
   * @param {"attention" | "mlp"} part
   * @returns {Promise<Read>}
   */
  async input(part) {
    const [name, way] = part === "attention" ? ["resid_pre", this.entering] : ["resid_mid", to("resid_mid")];
    const x = await this.row(name);
    if (this.built.norm === "after") return { x, steps: [], to: way };
    const { weight, bias } = await this.norm(`${part}_norm`);
    return this.normed(x, weight, bias, to(`${part}_input`));
  }

  /**
   * A vector after LayerNorm, and one step that says so.
   *
   * @param {Float32Array} vector
   * @param {Float32Array} weight
   * @param {Float32Array} bias
   * @param {(dimension: number) => Way} way
   * @returns {Read}
   */
  normed(vector, weight, bias, way) {
    const { mean, variance, values } = layerNorm(vector, weight, bias, this.eps);
    const says = "What is read here is the stream after LayerNorm. Click a dimension below to see that worked out.";
    const line = ["_x_ = (_stream_ − ", mean, ") / √(", variance, " + ε) × γ + β, in every dimension"];
    return { x: values, steps: [lineStep("layer-norm", "LayerNorm", says, [line], NaN)], to: way };
  }
}

/**
 * @param {string} number
 * @param {Way} [more]
 * @returns {(dimension: number) => Way}
 */
export function to(number, more = {}) {
  return (dimension) => ({ number, dimension, ...more });
}

/**
 * Terms x_i · w_i.
 *
 * @param {ArrayLike<number>} x
 * @param {ArrayLike<number>} w
 * @param {(i: number) => string} name
 * @param {(i: number) => Way} [way]
 * @returns {Term[]}
 */
export function products(x, w, name, way) {
  return Array.from(x, (value, i) => ({ name: name(i), factors: [value, w[i]], value: value * w[i], ...(way && { to: way(i) }) }));
}

/**
 * x · w + b as a step, or two: the products added up, then the bias.
 *
 * @param {string} says
 * @param {Term[]} terms
 * @param {string[]} factors
 * @param {number | null} bias
 * @param {string} [title]
 * @returns {Step[]}
 */
export function linear(says, terms, factors, bias, title = "Multiply and add up") {
  const sum = sumStep("products", title, says, terms, factors);
  if (bias === null) return [sum];
  const value = sum.value + bias;
  return [sum, lineStep("bias", "Bias", "A number that is added whatever the text says.", [[sum.value, " + ", bias, " = ", value]], value)];
}

/** @param {number} i */
export function dimensionName(i) {
  return `dimension ${i}`;
}

