/**
 * The bodies and heads that run in a page, as layers/bodies.py and layers/heads.py.
 *
 * @typedef {object} Config  what the engine reads of a model's Config
 * @property {string} name
 * @property {string} family
 * @property {string} task
 * @property {number} vocab_size
 * @property {number} n_positions
 * @property {number} n_layers
 * @property {number} n_heads
 * @property {number} n_kv_heads
 * @property {number} d_head
 * @property {number} d_model
 * @property {number} d_mlp
 * @property {number} n_segments
 * @property {"layer" | "rms"} norm
 * @property {number} norm_eps
 * @property {boolean} norm_plus_one  norms scale by 1 + weight
 * @property {"after" | "before" | "output" | "both"} norm_place
 * @property {boolean} parallel  attention and MLP read the same stream
 * @property {"none" | "head" | "width"} query_key_norm
 * @property {string} activation
 * @property {string} head_activation
 * @property {boolean} causal
 * @property {number} embed_scale  of the rows of the word table
 * @property {number | null} logit_soft_cap
 * @property {number[]} scale  of each layer: scores = scale · query·key
 * @property {number | null} [soft_cap]  of scores
 * @property {([number, number] | null)[]} [windows]  of each layer
 * @property {import("../core/data/rotation.js").Rotary[]} [rotary]
 * @property {number[]} [turned]  of each layer: which of `rotary`
 * @property {string[]} labels  of a head that gives classes
 * @property {string[]} absent  quantities of a layer that the model does not have
 * @property {import("../core/data/source.js").Built} built
 *
 * @typedef {import("./tensor.js").Tensor} Tensor
 * @typedef {import("./weights.js").Weights} Weights
 */

import { activate } from "./activations.js";
import { Layer, Linear, normWhere } from "./parts.js";
import { multiply, rowOf, softCapped, tensor } from "./tensor.js";

/** Embeddings, and what stands behind the last layer. */
class Body {
  /**
   * @param {Config} config
   * @param {Weights} weights
   */
  constructor(config, weights) {
    const table = (/** @type {string} */ name) => (weights.has(name) ? weights.get(name).values : null);
    this.word = weights.get("body.word.weight").values;
    this.position = table("body.position.weight");
    this.segment = table("body.segment.weight");
    this.embedNorm = normWhere(weights, "body.embed_norm", config);
    this.finalNorm = normWhere(weights, "body.final_norm", config);
    this.width = config.d_model;
    this.scale = config.embed_scale;
  }

  /**
   * word (+ segment) (+ position), and a norm where there is one.
   *
   * @param {number[]} ids
   * @param {number[]} segments
   */
  embed(ids, segments) {
    const summed = rows(this.word, ids, this.width);
    if (this.scale !== 1) for (let i = 0; i < summed.values.length; i += 1) summed.values[i] *= this.scale;
    if (this.segment) addRows(summed, rows(this.segment, segments, this.width));
    if (this.position) addRows(summed, rows(this.position, ids.map((_, i) => i), this.width));
    return this.embedNorm ? this.embedNorm.forward(summed) : summed;
  }

  /** The hidden state that the task head reads: the stream, or the last norm of it. @param {Tensor} hidden */
  final(hidden) {
    return this.finalNorm ? this.finalNorm.forward(hidden) : hidden;
  }
}

/** One logit a vocabulary entry at each position: decoder(norm(activation(W·hidden + b))), or the decoder alone. */
class VocabularyHead {
  /**
   * @param {Config} config
   * @param {Weights} weights
   * @param {Float32Array} word  the embedding, which an output embedding may be tied to
   */
  constructor(config, weights, word) {
    this.transform = weights.has("head.transform.weight") ? new Linear(weights, "head.transform") : null;
    this.norm = normWhere(weights, "head.norm", config);
    this.decoder = weights.has("head.decoder.weight") ? weights.get("head.decoder.weight").values : word;
    this.bias = weights.has("head.decoder.bias") ? weights.get("head.decoder.bias").values : null;
    this.config = config;
  }

  /** (position, vocab). @param {Tensor} hidden */
  forward(hidden) {
    const { d_model: width, vocab_size: vocabulary, head_activation: activation, logit_soft_cap: cap } = this.config;
    let read = hidden;
    if (this.transform && this.norm) read = this.norm.forward(activate(this.transform.forward(read.values), activation));
    const positions = read.values.length / width;
    return softCapped(tensor([positions, vocabulary], multiply(read.values, this.decoder, positions, width, vocabulary, this.bias)), cap);
  }
}

/**
 * One logit a class of the whole text, from one token: the first, through the pooler; where no query looks
 * ahead, the last.
 */
class ClassHead {
  /**
   * @param {Config} config
   * @param {Weights} weights
   */
  constructor({ causal }, weights) {
    this.pooler = causal ? null : new Linear(weights, "body.pooler");
    this.classifier = new Linear(weights, "head.classifier");
  }

  /** (1, label). @param {Tensor} hidden */
  forward(hidden) {
    if (!this.pooler) return this.classifier.forward(rowOf(hidden, hidden.shape[0] - 1).values);
    return this.classifier.forward(this.pooler.forward(rowOf(hidden, 0).values).values.map(Math.tanh));
  }
}

/**
 * @param {Config} config
 * @param {Weights} weights
 * @param {Float32Array} word
 */
function headOf(config, weights, word) {
  if (config.task === "none") return null;
  return config.task === "sequence-classification" ? new ClassHead(config, weights) : new VocabularyHead(config, weights, word);
}

export class Model {
  /**
   * @param {Config} config
   * @param {Weights} weights
   */
  constructor(config, weights) {
    this.config = config;
    this.body = new Body(config, weights);
    this.layers = Array.from({ length: config.n_layers }, (_, n) => new Layer(weights, `body.groups.${n}`, config, n));
    this.head = headOf(config, weights, this.body.word);
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
