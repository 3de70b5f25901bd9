/**
 * The weights of a model, and what holds them: attention, MLP, layers, embeddings and heads, as layers/parts.py,
 * layers/bodies.py and layers/heads.py.
 *
 * @import { Rotary } from "../core/data/rotation.js"
 * @import { Built } from "../core/data/source.js"
 * @import { Change } from "./engine.js"
 * @import { Dictionary } from "./features.js"
 * @import { Kind } from "./product.js"
 * @import { Tensor } from "./tensor.js"
 */

import { normed, positionRow } from "../core/data/norms.js";
import { fillSoftmax, seenOf } from "../core/data/softmax.js";
import { KINDS, Matrix, productOf, single } from "./product.js";
import { activate, meanOf, rowOf, softCapped, sum, swapped, tensor, turned } from "./tensor.js";

/**
 * @typedef {object} WeightEntry
 * @property {string} name
 * @property {number[]} shape
 * @property {Kind} dtype  bytes are little-endian; of int8 the scales of the rows, float32, stand in front
 * @property {number} from  the first byte
 */

/** The weights of a model by their names: matrices, and vectors as numbers. */
export class Weights {
  constructor() {
    /** @type {Map<string, Matrix>} */
    this.matrices = new Map();
    /** @type {Map<string, Float32Array>} */
    this.vectors = new Map();
  }

  /** What a page holds. Half precision takes twice the room here, and no time later. @param {WeightEntry[]} entries @param {ArrayBuffer} bytes */
  static ofBytes(entries, bytes) {
    const made = new Weights();
    for (const { name, shape, dtype, from } of entries) {
      const coded = dtype === "int8";
      const scales = coded ? new Float32Array(bytes, from, shape[0]) : null;
      const stored = new KINDS[dtype](bytes, from + (scales?.byteLength ?? 0), shape.reduce((a, b) => a * b, 1));
      const values = coded ? stored : single(dtype, stored);
      if (shape.length < 2) made.vectors.set(name, /** @type {Float32Array} */ (values));
      else made.matrix(name, coded ? "int8" : "float32", shape).put(0, values);
      if (scales) made.matrices.get(name)?.scales.set(scales);
    }
    return made;
  }

  /** A matrix of zeros under this name. @param {string} name @param {Kind} kind @param {number[]} shape */
  matrix(name, kind, [rows, width]) {
    const made = new Matrix(kind, rows, width);
    this.matrices.set(name, made);
    return made;
  }

  /** @param {string} name */
  has(name) {
    return this.matrices.has(name);
  }

  /** @param {string} name @returns {Matrix} */
  get(name) {
    const found = this.matrices.get(name);
    if (!found) throw new RangeError(`the model has no weight ${name}`);
    return found;
  }

  /** The numbers of a vector; null where there is none of this name. @param {string} name */
  find(name) {
    return this.vectors.get(name) ?? null;
  }

  /** A weight, or one row of it, to be given away; null where there is none of this name. @param {string} name @param {number | null} row @returns {Tensor | null} */
  row(name, row) {
    const matrix = this.matrices.get(name);
    const vector = this.vectors.get(name);
    if (!matrix && !vector) return null;
    const rows = matrix?.rows ?? vector?.length ?? 0;
    if (row !== null && !(row >= 0 && row < rows)) throw new RangeError(`${name} has ${rows} rows; there is no row ${row}`);
    if (matrix) return row === null ? tensor([rows, matrix.width], matrix.slice(0, rows).slice()) : tensor([matrix.width], matrix.slice(row).slice());
    const values = /** @type {Float32Array} */ (vector);
    return row === null ? tensor([rows], values.slice()) : tensor([], values.slice(row, row + 1));
  }
}

/**
 * @typedef {object} Looking  which keys a query sees, and what the softmax is taken of
 * @property {boolean} causal  no query looks ahead
 * @property {[number, number] | null} window  keys before and after its own position that a query sees; null: all
 * @property {number | null} softCap  scores are squeezed into −cap to cap; null: they stay
 */

/** @param {Config} config @param {number} layer @returns {Looking} */
export function lookingOf({ causal, windows, soft_cap: softCap = null }, layer) {
  return { causal, window: windows?.[layer] ?? null, softCap };
}

/** query · key · scale, before soft cap and mask: (head, query, key). Heads may share a key head. @param {Tensor} query @param {Tensor} key @param {number} scale */
export function attentionScores(query, key, scale) {
  const [heads, positions, dHead] = query.shape;
  const [, keys] = key.shape;
  const out = tensor([heads, positions, keys]);
  for (let head = 0; head < heads; head += 1) {
    const product = productOf(ofHead(query, head), ofHead(key, keyHead(head, query, key)), positions, dHead, keys);
    for (let i = 0; i < product.length; i += 1) product[i] *= scale;
    out.values.set(product, head * product.length);
  }
  return out;
}

/** softmax of the scores over the keys that each query may see; 0 for the others. @param {Tensor} scores @param {Looking} looking @param {number} [first]  where the first query stands */
export function attentionProbs(scores, looking, first = 0) {
  const [heads, positions, keys] = scores.shape;
  const capped = softCapped(scores, looking.softCap);
  const [out, own] = [tensor(scores.shape), new Float64Array(keys)];
  for (let row = 0; row < heads * positions; row += 1) {
    const seen = seenOf({ nKeys: keys, window: looking.window }, looking.causal, first + (row % positions));
    own.set(capped.values.subarray(row * keys, (row + 1) * keys));
    fillSoftmax(own, seen, out.values, row * keys);
  }
  return out;
}

/** probs · value: (head, position, d_head). @param {Tensor} probs @param {Tensor} value */
export function weightedValues(probs, value) {
  const [heads, positions, keys] = probs.shape;
  const [, , dHead] = value.shape;
  const out = tensor([heads, positions, dHead]);
  for (let head = 0; head < heads; head += 1) {
    out.values.set(productOf(ofHead(probs, head), ofHead(value, keyHead(head, probs, value)), positions, keys, dHead, true), head * positions * dHead);
  }
  return out;
}

/** The key-value head that a head reads. @param {number} head @param {Tensor} ofHeads  (head, …) @param {Tensor} ofKeys  (key-value head, …) */
function keyHead(head, ofHeads, ofKeys) {
  return Math.floor((head * ofKeys.shape[0]) / ofHeads.shape[0]);
}

/** @param {Tensor} x  (head, …) @param {number} head */
export function ofHead({ shape, values }, head) {
  const part = values.length / shape[0];
  return values.subarray(head * part, (head + 1) * part);
}

/** x·Wᵀ + b: (rows, d_out) of (rows, d_in). @param {Matrix} weight @param {Float32Array} x @param {Float32Array | null} bias */
function biased(weight, x, bias) {
  const rows = x.length / weight.width;
  return tensor([rows, weight.rows], weight.times(x, rows, bias));
}

/** y = x·Wᵀ + b. */
class Linear {
  /** @param {Weights} weights @param {string} name */
  constructor(weights, name) {
    this.weight = weights.get(`${name}.weight`);
    this.bias = weights.find(`${name}.bias`);
  }

  /** (rows, d_out) of (rows, d_in). @param {Float32Array} x @returns {Tensor} */
  forward(x) {
    return biased(this.weight, x, this.bias);
  }
}

/** LayerNorm or RMSNorm, as the model has it, with the weight of this name; x as it is where the model has none there. */
class Norm {
  /** @param {Weights} weights @param {string} name @param {Config} config */
  constructor(weights, name, { norm, norm_eps: eps, norm_plus_one: plusOne }) {
    const weight = weights.find(`${name}.weight`);
    this.norm = weight && { kind: norm, weight, bias: weights.find(`${name}.bias`), plusOne, eps };
  }

  /** @param {Tensor} x */
  forward(x) {
    if (!this.norm) return x;
    const { length: width } = this.norm.weight;
    const out = tensor(x.shape);
    for (let from = 0; from < x.values.length; from += width) out.values.set(normed(x.values.subarray(from, from + width), this.norm).values, from);
    return out;
  }
}

/**
 * Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2.2). Several heads may share
 * a key-value head (Ainslie et al. 2023).
 */
class Attention {
  /** @param {Weights} weights @param {string} name @param {Config} config @param {number} layer */
  constructor(weights, name, config, layer) {
    const part = (/** @type {string} */ own) => ({ linear: new Linear(weights, `${name}.${own}`), norm: new Norm(weights, `${name}.${own}_norm`, config) });
    this.parts = { query: part("query"), key: part("key"), value: part("value") };
    this.output = new Linear(weights, `${name}.output`);
    this.normsHeads = config.query_key_norm === "head";
    this.dHead = config.d_head;
    this.scale = config.scale[layer];
    this.looking = lookingOf(config, layer);
    this.rotary = config.rotary && config.turned ? config.rotary[config.turned[layer]] : null;
  }

  /** query, key or value of all heads: x·W + b, normed where the model does that. @param {"query" | "key" | "value"} name @param {Tensor} x */
  project(name, x) {
    const { linear, norm } = this.parts[name];
    const made = linear.forward(x.values);
    const { shape: [positions, width], values } = this.normsHeads ? made : norm.forward(made);
    const split = tensor([width / this.dHead, positions, this.dHead], swapped(values, positions, width / this.dHead, this.dHead));
    return this.normsHeads ? norm.forward(split) : split;
  }

  /** Queries or keys, turned by where they stand; the first of them stands at `first`. @param {Tensor} vectors @param {number} first */
  turned(vectors, first) {
    if (!this.rotary) throw new RangeError("the model turns no queries and keys");
    return turned(vectors, this.rotary, first);
  }

  /** What each head adds to the stream: z·W_O of that head, without the bias. @param {Tensor} z */
  headOut(z) {
    const [heads, positions, dHead] = z.shape;
    const { weight } = this.output;
    const out = tensor([heads, positions, weight.rows]);
    for (let head = 0; head < heads; head += 1) {
      const made = weight.times(ofHead(z, head), positions, null, { first: head * dHead, width: dHead });
      out.values.set(made, head * made.length);
    }
    return out;
  }

  /** What attention adds to the stream, z·W_O + b_O over all heads. @param {Tensor} z */
  attnOut({ shape: [heads, positions, dHead], values }) {
    return this.output.forward(swapped(values, heads, positions, dHead));
  }

  /** attn_out from what each head adds: their sum + b_O. @param {Tensor} headOut */
  sumOfHeads({ shape: [heads, positions, width], values }) {
    const out = tensor([positions, width]);
    const { bias } = this.output;
    for (let i = 0; i < out.values.length; i += 1) {
      let total = bias ? bias[i % width] : 0;
      for (let head = 0; head < heads; head += 1) total += values[head * positions * width + i];
      out.values[i] = total;
    }
    return out;
  }
}

/**
 * mlp_out = activation(x·W_in + b_in)·W_out + b_out (Vaswani et al. 2017, section 3.3). Gated it is
 * (activation(x·W_gate + b_gate) · (x·W_in + b_in))·W_out + b_out (Shazeer 2020, section 2).
 */
class FeedForward {
  /** @param {Weights} weights @param {string} name @param {Config} config */
  constructor(weights, name, config) {
    this.gate = weights.has(`${name}.gate.weight`) ? new Linear(weights, `${name}.gate`) : null;
    this.up = new Linear(weights, `${name}.up`);
    this.down = new Linear(weights, `${name}.down`);
    this.activation = config.activation;
  }

  /** mlp_gate, which enters the activation. @param {Tensor} x */
  gateOf(x) {
    if (!this.gate) throw new RangeError("the MLPs of this model have no gate");
    return this.gate.forward(x.values);
  }

  /** What W_out reads. @param {Tensor} pre @param {Tensor | null} gate */
  post(pre, gate) {
    if (!gate) return activate(pre, this.activation);
    const out = activate(gate, this.activation);
    for (let i = 0; i < out.values.length; i += 1) out.values[i] *= pre.values[i];
    return out;
  }
}

/**
 * The weights of a layer: attention, MLP and their norms.
 *
 * Before (GPT-2):    mid = x + attn_out(norm(x)),         post = mid + mlp_out(norm(mid))
 * After (BERT):      mid = norm(x + attn_out(x)),         post = norm(mid + mlp_out(mid))
 * Output (OLMo 2):   mid = x + norm(attn_out(x)),         post = mid + norm(mlp_out(mid))
 * Both (Gemma 2):    mid = x + norm(attn_out(norm(x))),   post = mid + norm(mlp_out(norm(mid)))
 * Parallel (NeoX):   mid = x + attn_out(norm(x)),         post = mid + mlp_out(norm(x))
 */
export class Layer {
  /** @param {Weights} weights @param {string} name @param {Config} config @param {number} index */
  constructor(weights, name, config, index) {
    const norms = (/** @type {string} */ own) => ({ stream: new Norm(weights, `${name}.${own}_norm`, config), output: new Norm(weights, `${name}.${own}_output_norm`, config) });
    this.after = config.norm_place === "after";
    this.parallel = config.parallel;
    this.attention = new Attention(weights, `${name}.attention`, config, index);
    this.mlp = new FeedForward(weights, `${name}.mlp`, config);
    this.norms = { attention: norms("attention"), mlp: norms("mlp") };
  }

  /** What a branch reads of the stream. @param {"attention" | "mlp"} branch @param {Tensor} stream */
  input(branch, stream) {
    return this.after ? stream : this.norms[branch].stream.forward(stream);
  }

  /** The stream behind a branch: resid_mid or resid_post. @param {"attention" | "mlp"} branch @param {Tensor} stream @param {Tensor} out  attn_out or mlp_out */
  added(branch, stream, out) {
    const { stream: norm, output } = this.norms[branch];
    const total = sum(stream, output.forward(out));
    return this.after ? norm.forward(total) : total;
  }
}

/**
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
 * @property {number} n_layer_groups  sets of weights that the layers share
 * @property {"layer" | "rms"} norm
 * @property {number} norm_eps
 * @property {boolean} norm_plus_one  norms scale by 1 + weight
 * @property {"after" | "before" | "output" | "both"} norm_place
 * @property {boolean} parallel  attention and MLP read the same stream
 * @property {"none" | "head" | "width"} query_key_norm
 * @property {string} activation
 * @property {string} head_activation
 * @property {string | null} [first_activation]  of the layer between the first token and the classes of a text; null: the pooler stands there, if any
 * @property {"first" | "mean" | "last"} reads  which position a head for classes reads
 * @property {number} position_offset  RoBERTa's positions begin there
 * @property {boolean} causal
 * @property {number} embed_scale  of the rows of the word table
 * @property {number | null} logit_soft_cap
 * @property {number[]} scale  of each layer: scores = scale · query·key
 * @property {number | null} [soft_cap]  of scores
 * @property {([number, number] | null)[]} [windows]  of each layer
 * @property {Rotary[]} [rotary]
 * @property {number[]} [turned]  of each layer: which of `rotary`
 * @property {string[]} labels  of a head that gives classes
 * @property {Record<string, Editable>} quantities  that the model has and a page computes, in the order of the data
 * @property {Built} built
 * @property {Dictionary} [features]  whose weights the page holds
 *
 * @typedef {object} Editable  what an edit of a quantity may name (viz/engine_edits.py)
 * @property {string[]} axes  without the batch
 * @property {Record<string, number | null>} places  how many there are; 0: it has none; null: as many as tokens
 * @property {Partial<Record<Change, string>>} refused  why it cannot have a change
 */

/** Embeddings, and what stands behind the last layer. */
class Body {
  /** @param {Config} config @param {Weights} weights */
  constructor(config, weights) {
    this.word = weights.get("body.word.weight");
    this.position = weights.matrices.get("body.position.weight");
    this.segment = weights.matrices.get("body.segment.weight");
    this.embedNorm = new Norm(weights, "body.embed_norm", config);
    this.project = weights.has("body.embed_project.weight") ? new Linear(weights, "body.embed_project") : null;
    this.finalNorm = new Norm(weights, "body.final_norm", config);
    this.scale = config.embed_scale;
    this.offset = config.position_offset;
  }

  /** word (+ segment) (+ position), a norm and a projection where there are. @param {number[]} ids @param {number[]} segments */
  embed(ids, segments) {
    const summed = rows(this.word, ids);
    if (this.scale !== 1) for (let i = 0; i < summed.values.length; i += 1) summed.values[i] *= this.scale;
    const more = [this.segment && rows(this.segment, segments), this.position && rows(this.position, ids.map((_, i) => positionRow(ids, i, this.offset)))];
    for (const added of more) if (added) for (let i = 0; i < summed.values.length; i += 1) summed.values[i] += added.values[i];
    const embedded = this.embedNorm.forward(summed);
    return this.project ? this.project.forward(embedded.values) : embedded;
  }

  /** The hidden state that the task head reads: the stream, or the last norm of it. @param {Tensor} hidden */
  final(hidden) {
    return this.finalNorm.forward(hidden);
  }
}

/** The rows of a table. @param {Matrix} table @param {number[]} chosen */
function rows(table, chosen) {
  const out = tensor([chosen.length, table.width]);
  chosen.forEach((row, i) => out.values.set(table.slice(row), i * table.width));
  return out;
}

/** One logit a vocabulary entry at each position: decoder(norm(activation(W·hidden + b))), or the decoder alone. */
class VocabularyHead {
  /** @param {Config} config @param {Weights} weights @param {Matrix} word  the embedding, which an output embedding may be tied to */
  constructor(config, weights, word) {
    this.transform = weights.has("head.transform.weight") ? new Linear(weights, "head.transform") : null;
    this.norm = new Norm(weights, "head.norm", config);
    this.decoder = weights.matrices.get("head.decoder.weight") ?? word;
    this.bias = weights.find("head.decoder.bias");
    this.config = config;
  }

  /** (position, vocab). @param {Tensor} hidden */
  forward(hidden) {
    const { head_activation: activation, logit_soft_cap: cap } = this.config;
    const { values } = this.transform ? this.norm.forward(activate(this.transform.forward(hidden.values), activation)) : hidden;
    return softCapped(biased(this.decoder, values, this.bias), cap);
  }
}

/** One logit a class of the whole text, from one token or the mean, through the pooler or a layer of the head; of families that continue texts, from the last token as it is. */
class ClassHead {
  /** @param {Config} config @param {Weights} weights */
  constructor(config, weights) {
    const pooled = weights.has("body.pooler.weight");
    this.reads = config.reads;
    this.first = this.reads === "last" ? null : new Linear(weights, pooled ? "body.pooler" : "head.transform");
    this.activation = pooled ? "tanh" : config.first_activation ?? config.head_activation;
    this.norm = new Norm(weights, "head.norm", config);
    this.classifier = new Linear(weights, "head.classifier");
  }

  /** (1, label). @param {Tensor} hidden */
  forward(hidden) {
    const [positions] = hidden.shape;
    const read = this.reads === "mean" ? meanOf(hidden) : rowOf(hidden, this.reads === "last" ? positions - 1 : 0);
    const made = this.first ? this.norm.forward(activate(this.first.forward(read.values), this.activation)) : read;
    return this.classifier.forward(made.values);
  }
}

/** The set of weights that a layer has. @param {number} layer @param {number} layers @param {number} groups */
export function groupOf(layer, layers, groups) {
  return Math.floor(layer / (layers / groups));
}

export class Model {
  /** @param {Config} config @param {Weights} weights */
  constructor(config, weights) {
    const { task, n_layers: nLayers, n_layer_groups: groups } = config;
    this.config = config;
    this.body = new Body(config, weights);
    this.layers = Array.from({ length: nLayers }, (_, n) => new Layer(weights, `body.groups.${groupOf(n, nLayers, groups)}`, config, n));
    const ofWords = () => new VocabularyHead(config, weights, this.body.word);
    this.head = task === "none" ? null : task === "sequence-classification" ? new ClassHead(config, weights) : ofWords();
  }
}
