/** What holds the weights of a layer, as layers/parts.py and layers/attention.py. */

import { activate } from "./activations.js";
import { layerNorm, mergeHeads, multiply, splitHeads, tensor } from "./tensor.js";

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

export class LayerNorm {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {number} eps
   */
  constructor(weights, name, eps) {
    this.weight = weights.get(`${name}.weight`).values;
    this.bias = weights.get(`${name}.bias`).values;
    this.eps = eps;
  }

  /** @param {Tensor} x */
  forward(x) {
    return layerNorm(x, this.weight, this.bias, this.eps);
  }
}

/** Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2.2). */
export class Attention {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   * @param {number} scale
   */
  constructor(weights, name, config, scale) {
    this.linears = {
      query: new Linear(weights, `${name}.query`),
      key: new Linear(weights, `${name}.key`),
      value: new Linear(weights, `${name}.value`),
    };
    this.output = new Linear(weights, `${name}.output`);
    this.heads = config.n_heads;
    this.dHead = config.d_model / config.n_heads;
    this.scale = scale;
  }

  /**
   * query, key or value of all heads: x·W + b.
   *
   * @param {"query" | "key" | "value"} name
   * @param {Tensor} x
   */
  project(name, x) {
    return splitHeads(this.linears[name].forward(x.values).values, x.shape[0], this.heads, this.dHead);
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

/** mlp_out = activation(x·W_in + b_in)·W_out + b_out (Vaswani et al. 2017, section 3.3). */
export class FeedForward {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   */
  constructor(weights, name, config) {
    this.up = new Linear(weights, `${name}.up`);
    this.down = new Linear(weights, `${name}.down`);
    this.activation = config.activation;
  }

  /** @param {Tensor} pre */
  post(pre) {
    return activate(pre, this.activation);
  }
}

/**
 * The weights of a layer: attention, MLP and their LayerNorms, before or after each.
 *
 * Before (GPT-2):  mid = x + attn_out(LN(x)),    post = mid + mlp_out(LN(mid))
 * After (BERT):    mid = LN(x + attn_out(x)),    post = LN(mid + mlp_out(mid))
 */
export class Layer {
  /**
   * @param {Weights} weights
   * @param {string} name
   * @param {Config} config
   * @param {number} index
   */
  constructor(weights, name, config, index) {
    this.preNorm = config.pre_norm;
    this.attention = new Attention(weights, `${name}.attention`, config, config.scale[index]);
    this.attentionNorm = new LayerNorm(weights, `${name}.attention_norm`, config.norm_eps);
    this.mlp = new FeedForward(weights, `${name}.mlp`, config);
    this.mlpNorm = new LayerNorm(weights, `${name}.mlp_norm`, config.norm_eps);
  }

  /** What W_Q, W_K and W_V read. @param {Tensor} residPre */
  attentionInput(residPre) {
    return this.preNorm ? this.attentionNorm.forward(residPre) : residPre;
  }

  /** resid_mid from the sum resid_pre + attn_out. @param {Tensor} total */
  afterAttention(total) {
    return this.preNorm ? total : this.attentionNorm.forward(total);
  }

  /** What W_in reads. @param {Tensor} residMid */
  mlpInput(residMid) {
    return this.preNorm ? this.mlpNorm.forward(residMid) : residMid;
  }

  /** resid_post from the sum resid_mid + mlp_out. @param {Tensor} total */
  afterMlp(total) {
    return this.preNorm ? total : this.mlpNorm.forward(total);
  }
}
