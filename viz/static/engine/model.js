/**
 * The bodies and heads that run in a page: BERT and GPT-2, as layers/bodies.py and layers/heads.py.
 *
 * @typedef {object} Config  what the engine reads of a model's Config
 * @property {string} name
 * @property {"bert" | "gpt2"} family
 * @property {string} task
 * @property {number} vocab_size
 * @property {number} n_positions
 * @property {number} n_layers
 * @property {number} n_heads
 * @property {number} d_model
 * @property {number} d_mlp
 * @property {number} n_segments
 * @property {number} norm_eps
 * @property {string} activation
 * @property {boolean} causal
 * @property {boolean} pre_norm
 * @property {number[]} scale  of each layer: scores = scale · query·key
 *
 * @typedef {import("./tensor.js").Tensor} Tensor
 */

import { activate } from "./activations.js";
import { Layer, LayerNorm, Linear } from "./parts.js";
import { multiply, tensor } from "./tensor.js";

/** Embeddings and layers; what leaves the last layer is the hidden state. */
class BertBody {
  /**
   * @param {Config} config
   * @param {import("./weights.js").Weights} weights
   */
  constructor(config, weights) {
    this.word = weights.get("body.word.weight").values;
    this.position = weights.get("body.position.weight").values;
    this.segment = config.n_segments ? weights.get("body.segment.weight").values : null;
    this.norm = new LayerNorm(weights, "body.embed_norm", config.norm_eps);
    this.width = config.d_model;
  }

  /**
   * word + segment + position, LayerNorm.
   *
   * @param {number[]} ids
   * @param {number[]} segments
   */
  embed(ids, segments) {
    const summed = rows(this.word, ids, this.width);
    if (this.segment) addRows(summed, rows(this.segment, segments, this.width));
    addRows(summed, rows(this.position, ids.map((_, i) => i), this.width));
    return this.norm.forward(summed);
  }

  /** The hidden state that the task head reads: the stream itself. @param {Tensor} hidden */
  final(hidden) {
    return hidden;
  }
}

/** Embeddings, layers and the last LayerNorm. */
class Gpt2Body {
  /**
   * @param {Config} config
   * @param {import("./weights.js").Weights} weights
   */
  constructor(config, weights) {
    this.word = weights.get("body.word.weight").values;
    this.position = weights.get("body.position.weight").values;
    this.norm = new LayerNorm(weights, "body.final_norm", config.norm_eps);
    this.width = config.d_model;
  }

  /** word + position. @param {number[]} ids */
  embed(ids) {
    const summed = rows(this.word, ids, this.width);
    addRows(summed, rows(this.position, ids.map((_, i) => i), this.width));
    return summed;
  }

  /** The hidden state that the task head reads: LayerNorm of the stream. @param {Tensor} hidden */
  final(hidden) {
    return this.norm.forward(hidden);
  }
}

/** One logit a vocabulary entry at each position: decoder(LN(activation(W·hidden + b))); GPT-2 has the decoder alone. */
class VocabularyHead {
  /**
   * @param {Config} config
   * @param {import("./weights.js").Weights} weights
   * @param {Float32Array} word  the embedding, which an output embedding may be tied to
   */
  constructor(config, weights, word) {
    const alone = config.family === "gpt2";
    this.transform = alone ? null : new Linear(weights, "head.transform");
    this.norm = alone ? null : new LayerNorm(weights, "head.norm", config.norm_eps);
    this.decoder = weights.has("head.decoder.weight") ? weights.get("head.decoder.weight").values : word;
    this.bias = weights.has("head.decoder.bias") ? weights.get("head.decoder.bias").values : null;
    this.config = config;
  }

  /** (position, vocab). @param {Tensor} hidden */
  forward(hidden) {
    const { d_model: width, vocab_size: vocabulary, activation } = this.config;
    let read = hidden;
    if (this.transform && this.norm) read = this.norm.forward(activate(this.transform.forward(read.values), activation));
    const positions = read.values.length / width;
    return tensor([positions, vocabulary], multiply(read.values, this.decoder, positions, width, vocabulary, this.bias));
  }
}

/**
 * What a model of this configuration is built of.
 *
 * @param {Config} config
 * @returns {import("../core/data/source.js").Built}
 */
export function builtOf({ family, norm_eps: eps, activation, n_segments: segments, pre_norm: before }) {
  const alone = family === "gpt2";
  return {
    norm: before ? "before" : "after",
    eps,
    activation,
    segments: !alone && segments > 0,
    embedNorm: !alone,
    finalNorm: alone,
    transform: !alone,
  };
}

export class Model {
  /**
   * @param {Config} config
   * @param {import("./weights.js").Weights} weights
   */
  constructor(config, weights) {
    this.config = config;
    this.body = config.family === "gpt2" ? new Gpt2Body(config, weights) : new BertBody(config, weights);
    this.layers = Array.from({ length: config.n_layers }, (_, n) => new Layer(weights, `body.groups.${n}`, config, n));
    this.head = config.task === "none" ? null : new VocabularyHead(config, weights, this.body.word);
  }
}

/**
 * The rows of a table.
 *
 * @param {Float32Array} table
 * @param {number[]} chosen
 * @param {number} width
 */
function rows(table, chosen, width) {
  const out = tensor([chosen.length, width]);
  chosen.forEach((row, i) => out.values.set(table.subarray(row * width, (row + 1) * width), i * width));
  return out;
}

/**
 * Adds a tensor to another, in place.
 *
 * @param {Tensor} to
 * @param {Tensor} added
 */
function addRows({ values }, added) {
  for (let i = 0; i < values.length; i += 1) values[i] += added.values[i];
}
