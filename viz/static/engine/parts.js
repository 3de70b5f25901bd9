/** What holds the weights of a layer, as layers/parts.py and layers/attention.py. */

import { activate } from "./activations.js";
import { lookingOf } from "./attention.js";
import { mergeHeads, multiply, normed, splitHeads, sum, tensor } from "./tensor.js";
import { turned } from "./turned.js";

/**
 * @typedef {import("./tensor.js").Tensor} Tensor
 * @typedef {import("./weights.js").Weights} Weights
 * @typedef {import("./model.js").Config} Config
 */

/** y = x·Wᵀ + b. */
export class Linear {
  /**
   * @param {Weights} weights
   * @param {string} name
   */
  constructor(weights, name) {
    const { shape, values } = weights.get(`${name}.weight`);
    const [dOut, dIn] = shape;
    this.dOut = dOut;
    this.dIn = dIn;
    this.weight = values;
    this.bias = weights.has(`${name}.bias`) ? weights.get(`${name}.bias`).values : null;
  }

  /**
   * @param {Float32Array} x  (rows, d_in)
   * @returns {Tensor}  (rows, d_out)
   */
  forward(x) {
    const rows = x.length / this.dIn;
    return tensor([rows, this.dOut], multiply(x, this.weight, rows, this.dIn, this.dOut, this.bias));
  }
}

/** LayerNorm or RMSNorm, as the model has it, with the weight of this name. */
export class Norm {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   */
  constructor(weights, name, { norm, norm_eps: eps, norm_plus_one: plusOne }) {
    const { values } = weights.get(`${name}.weight`);
    this.weight = plusOne ? values.map((value) => 1 + value) : values;
    this.bias = weights.has(`${name}.bias`) ? weights.get(`${name}.bias`).values : null;
    this.kind = { eps, centred: norm === "layer" };
  }

  /** @param {Tensor} x */
  forward(x) {
    return normed(x, this.weight, this.bias, this.kind);
  }
}

/**
 * The norm of this name; null where the model has none there.
 *
 * @param {Weights} weights
 * @param {string} name
 * @param {Config} config
 */
export function normWhere(weights, name, config) {
  return weights.has(`${name}.weight`) ? new Norm(weights, name, config) : null;
}

/**
 * Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2.2). Several heads may share
 * a key-value head (Ainslie et al. 2023).
 */
export class Attention {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   * @param {number} layer
   */
  constructor(weights, name, config, layer) {
    this.linears = {
      query: new Linear(weights, `${name}.query`),
      key: new Linear(weights, `${name}.key`),
      value: new Linear(weights, `${name}.value`),
    };
    this.output = new Linear(weights, `${name}.output`);
    this.norms = { query: normWhere(weights, `${name}.query_norm`, config), key: normWhere(weights, `${name}.key_norm`, config), value: null };
    this.normsHeads = config.query_key_norm === "head";
    this.dHead = config.d_head;
    this.scale = config.scale[layer];
    this.looking = lookingOf(config, layer);
    this.rotary = config.rotary && config.turned ? config.rotary[config.turned[layer]] : null;
  }

  /**
   * query, key or value of all heads: x·W + b, normed where the model does that.
   *
   * @param {"query" | "key" | "value"} name
   * @param {Tensor} x
   */
  project(name, x) {
    const norm = this.norms[name];
    const made = this.linears[name].forward(x.values);
    const whole = norm && !this.normsHeads ? norm.forward(made) : made;
    const split = splitHeads(whole.values, x.shape[0], whole.shape[1] / this.dHead, this.dHead);
    return norm && this.normsHeads ? norm.forward(split) : split;
  }

  /**
   * Queries or keys, turned by where they stand; the first of them stands at `first`.
   *
   * @param {Tensor} vectors
   * @param {number} first
   */
  turned(vectors, first) {
    if (!this.rotary) throw new RangeError("the model turns no queries and keys");
    return turned(vectors, this.rotary, first);
  }

  /**
   * What each head adds to the stream: z·W_O of that head, without the bias.
   *
   * @param {Tensor} z
   */
  headOut({ shape: [heads, positions, dHead], values }) {
    const { weight, dOut, dIn } = this.output;
    const out = tensor([heads, positions, dOut]);
    for (let head = 0; head < heads; head += 1) {
      const part = new Float32Array(dOut * dHead);
      for (let i = 0; i < dOut; i += 1) {
        const from = i * dIn + head * dHead;
        part.set(weight.subarray(from, from + dHead), i * dHead);
      }
      const own = values.subarray(head * positions * dHead, (head + 1) * positions * dHead);
      out.values.set(multiply(own, part, positions, dHead, dOut), head * positions * dOut);
    }
    return out;
  }

  /**
   * What attention adds to the stream, z·W_O + b_O over all heads.
   *
   * @param {Tensor} z
   */
  attnOut(z) {
    return this.output.forward(mergeHeads(z));
  }

  /**
   * attn_out from what each head adds: their sum + b_O.
   *
   * @param {Tensor} headOut
   */
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
export class FeedForward {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   */
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

  /**
   * What W_out reads.
   *
   * @param {Tensor} pre
   * @param {Tensor | null} gate
   */
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
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   * @param {number} index
   */
  constructor(weights, name, config, index) {
    const norm = (/** @type {string} */ own) => normWhere(weights, `${name}.${own}`, config);
    this.after = config.norm_place === "after";
    this.parallel = config.parallel;
    this.attention = new Attention(weights, `${name}.attention`, config, index);
    this.attentionNorm = norm("attention_norm");
    this.attentionOutputNorm = norm("attention_output_norm");
    this.mlp = new FeedForward(weights, `${name}.mlp`, config);
    this.mlpNorm = norm("mlp_norm");
    this.mlpOutputNorm = norm("mlp_output_norm");
  }

  /** What W_Q, W_K and W_V read. @param {Tensor} residPre */
  attentionInput(residPre) {
    return this.after ? residPre : applied(this.attentionNorm, residPre);
  }

  /** resid_mid. @param {Tensor} residPre @param {Tensor} attnOut */
  afterAttention(residPre, attnOut) {
    const total = sum(residPre, applied(this.attentionOutputNorm, attnOut));
    return this.after ? applied(this.attentionNorm, total) : total;
  }

  /** What W_in and W_gate read. @param {Tensor} stream */
  mlpInput(stream) {
    return this.after ? stream : applied(this.mlpNorm, stream);
  }

  /** resid_post. @param {Tensor} residMid @param {Tensor} mlpOut */
  afterMlp(residMid, mlpOut) {
    const total = sum(residMid, applied(this.mlpOutputNorm, mlpOut));
    return this.after ? applied(this.mlpNorm, total) : total;
  }
}

/** @param {Norm | null} norm @param {Tensor} x */
function applied(norm, x) {
  return norm ? norm.forward(x) : x;
}
