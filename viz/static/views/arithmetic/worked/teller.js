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

import { normed, normNamed } from "../../../core/data/norms.js";
import { weightOf } from "../../../core/data/source.js";
import { layerSteps, normName } from "../../../core/data/wiring.js";
import { lineStep, sumStep } from "./steps.js";

export class Teller {
  /**
   * @param {import("../../../core/data/source.js").Source} source
   * @param {import("../../../core/data/example.js").Example} example
   * @param {Place} place
   */
  constructor(source, example, place) {
    this.source = source;
    this.built = source.shape.built;
    this.example = example;
    this.tokens = example.tokens;
    this.place = place;
  }

  /**
   * A step of the layer; nothing where the layer does not have it.
   *
   * @param {string} id
   */
  find(id) {
    return layerSteps(this.built, this.place.layer).find((step) => step.id === id);
  }

  /** @param {string} id @returns {import("../../../core/data/wiring.js").LayerStep} */
  step(id) {
    const found = this.find(id);
    if (!found) throw new RangeError(`layer ${this.place.layer} of this model has no ${id}`);
    return found;
  }

  /**
   * The vector (d_model or d_mlp) that a step of the layer gives at the position.
   *
   * @param {string} id
   * @returns {Promise<Float32Array>}
   */
  async vector(id) {
    const { between, reads, norm } = this.step(id);
    if (!between) return this.row(id);
    return normed(await this.vector(reads[0]), await this.norm(norm)).values;
  }

  /**
   * Where a dimension of a step of the layer is worked out.
   *
   * @param {string} id
   * @returns {(dimension: number) => Way}
   */
  way(id) {
    return id === "resid_pre" ? this.entering : to(id);
  }

  /** What the norms of the model are called. */
  get normName() {
    return normName(this.built);
  }

  /** The head of keys and values that the head reads. */
  get keyHead() {
    return this.example.keyHead(this.place.head);
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
   * @param {number} [head]
   */
  async ofHead(quantity, head = this.place.head) {
    const { shape: [heads], values } = await this.source.read(quantity, this.place.layer);
    const size = values.length / heads;
    return values.subarray(head * size, (head + 1) * size);
  }

  /**
   * A weight, or one row of it.
   *
   * @param {string} name
   * @param {number | null} [row]
   * @param {number | null} [layer]
   */
  weight(name, row = null, layer = this.place.layer) {
    return weightOf(this.source, name, layer, row);
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
   * @param {string} name  of a norm
   * @param {number | null} [layer]
   */
  norm(name, layer = this.place.layer) {
    return normNamed(this.source, name, layer);
  }

  /** Where a dimension of what enters the layer is worked out. @returns {(dimension: number) => Way} */
  get entering() {
    const { layer } = this.place;
    return layer ? to("resid_post", { layer: layer - 1 }) : to("embed");
  }

  /**
   * What a step of the layer reads: the stream, or a norm of it.
   *
   * @param {string} id
   * @returns {Promise<Read>}
   */
  async input(id) {
    const [name] = this.step(id).reads;
    const { between, reads, norm } = this.step(name);
    if (!between) return { x: await this.row(name), steps: [], to: this.way(name) };
    return this.normed(await this.vector(reads[0]), await this.norm(norm), to(name));
  }

  /**
   * A vector after a norm, and one step that says so.
   *
   * @param {Float32Array} vector
   * @param {import("../../../core/data/norms.js").Norm} norm
   * @param {(dimension: number) => Way} way
   * @returns {Read}
   */
  normed(vector, norm, way) {
    const { mean, variance, values } = normed(vector, norm);
    const says = `What is read here is the stream after ${this.normName}. Click a dimension below to see that worked out.`;
    const learned = `${norm.plusOne ? "(1 + γ)" : "γ"}${norm.bias ? " + β" : ""}`;
    const top = norm.kind === "rms" ? ["_x_ = _stream_ / √("] : ["_x_ = (_stream_ − ", mean, ") / √("];
    const line = [...top, variance, ` + ε) × ${learned}, in every dimension`];
    return { x: values, steps: [lineStep(norm.kind === "rms" ? "rms-norm" : "layer-norm", this.normName, says, [line], NaN)], to: way };
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

