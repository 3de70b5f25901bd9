/**
 * Every number of a pass worked out. No document here.
 *
 * Everything is computed in double precision from the single-precision numbers of the run.
 *
 * @import { Example } from "../../core/data/example.js"
 * @import { Norm } from "../../core/data/norms.js"
 * @import { Built, Candidate, LayerStep, Shape, Source } from "../../core/data/source.js"
 * @import { Step, Term, Way } from "./steps.js"
 */

import { ACTIVATIONS } from "../../core/data/activations.js";
import { embeddingOf, normed, normNamed } from "../../core/data/norms.js";
import { sharing } from "../../core/data/sharing.js";
import { timesRows } from "../../core/data/softmax.js";
import { headsAt, layerSteps, normName, rowAt, weightOf } from "../../core/data/source.js";
import { written } from "../../core/text/numbers.js";
import { tokenName } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { capStep, dimensionName, lineStep, products, sumStep, total } from "./steps.js";

/**
 * What the stories of numbers have in common: rows of quantities and weights at one place, and sums of
 * products of them.
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

export class Teller {
  /** @param {Source} source @param {Example} example @param {Place} place */
  constructor(source, example, place) {
    this.source = source;
    this.built = source.shape.built;
    this.example = example;
    this.tokens = example.tokens;
    this.place = place;
  }

  /** A step of the layer; nothing where the layer does not have it. @param {string} id */
  find(id) {
    return layerSteps(this.built, this.place.layer).find((step) => step.id === id);
  }

  /** @param {string} id @returns {LayerStep} */
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

  /** A quantity (position, …) at the position. @param {string} quantity @param {number | null} [layer] */
  row(quantity, layer = this.place.layer) {
    return rowAt(this.source, quantity, layer, this.place.position);
  }

  /** A quantity (head, position, …) of one head at the position. @param {string} quantity @param {number} [head] */
  async headRow(quantity, head = this.place.head) {
    return (await headsAt(this.source, quantity, this.place.layer, this.place.position))[head];
  }

  /** A quantity (head, position, …) of one head, all positions. @param {string} quantity @param {number} [head] */
  async ofHead(quantity, head = this.place.head) {
    const { shape: [heads], values } = await this.source.read(quantity, this.place.layer);
    const size = values.length / heads;
    return values.subarray(head * size, (head + 1) * size);
  }

  /** A weight, or one row of it. @param {string} name @param {number | null} [row] @param {number | null} [layer] */
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

  /** What a step of the layer reads: the stream, or a norm of it. @param {string} id @returns {Promise<Read>} */
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
   * @param {Norm} norm
   * @param {(dimension: number) => Way} way
   * @returns {Read}
   */
  normed(vector, norm, way) {
    const { mean, variance, values } = normed(vector, norm);
    const says = `This part reads the stream after ${this.normName}. Click a dimension below to see how it is computed.`;
    const learned = `${norm.plusOne ? "(1 + γ)" : "γ"}${norm.bias ? " + β" : ""}`;
    const top = norm.kind === "rms" ? ["_x_ = _stream_ / √("] : ["_x_ = (_stream_ − ", mean, ") / √("];
    const line = [...top, variance, ` + ε) × ${learned}, in every dimension`];
    return { x: values, steps: [lineStep(norm.kind === "rms" ? "rms-norm" : "layer-norm", this.normName, says, [line], NaN)], to: way };
  }
}

/** @param {string} number @param {Way} [more] @returns {(dimension: number) => Way} */
export function to(number, more = {}) {
  return (dimension) => ({ number, dimension, ...more });
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

/**
 * A norm of one dimension: of LayerNorm mean, variance, the same for every vector, learned scale.
 *
 * @param {object} given
 * @param {ArrayLike<number>} given.x  the whole vector
 * @param {number} given.dimension
 * @param {Norm} given.norm
 * @param {(dimension: number) => Way} [given.to]  where a dimension of x is worked out
 * @param {string} [given.whose]  whose numbers they are
 * @returns {Step[]}
 */
export function normSteps({ x, dimension, norm, to: way, whose = "of this token" }) {
  const { mean, variance } = normed(x, norm);
  const { length: width, [dimension]: own } = x;
  const rms = norm.kind === "rms";
  const scale = 1 / Math.sqrt(variance + norm.eps);
  const normal = (own - mean) * scale;
  const divided = (/** @type {string} */ id, /** @type {string} */ title, /** @type {string} */ says, /** @type {number} */ value, /** @type {(one: number) => number} */ f) => {
    const sum = sumStep(id, title, says, Array.from(x, (one, i) => ({ name: dimensionName(i), factors: [], value: f(one), ...(way && { to: way(i) }) })));
    return { ...sum, lines: [[`_${title.toLowerCase()}_ = `, sum.value, ` / ${width} = `, value]], value };
  };
  const root = [" / √(", variance, ` + ${written(norm.eps)})`];
  const steps = rms
    ? [divided("square", "Mean square", `RMSNorm squares all ${width} numbers ${whose}, adds them up and divides by ${width}. No mean is taken off.`, variance, (one) => one ** 2)]
    : [
        divided("mean", "Mean", `LayerNorm first adds up all ${width} numbers ${whose} and divides by ${width}.`, mean, (one) => one),
        divided("variance", "Variance", "How far the numbers lie from their mean: the mean of the squares of the distances.", variance, (one) => (one - mean) ** 2),
      ];
  const says = `After this the numbers of every token have ${rms ? "a mean square of 1" : "mean 0 and variance 1"}. ε keeps the root away from 0.`;
  const formula = rms ? ["_x_ / √(_mean square_ + ε) = ", own, ...root] : ["(_x_ − _mean_) / √(_variance_ + ε) = (", own, " − ", mean, ")", ...root];
  return [...steps, lineStep("normal", rms ? "Scale" : "Shift and scale", says, [formula, ["= ", own - mean, " × ", scale, " = ", normal]], normal), learned(normal, dimension, norm)];
}

/** @param {number} normal @param {number} dimension @param {Norm} norm @returns {Step} */
function learned(normal, dimension, { weight, bias, plusOne }) {
  const scaled = normal * ((plusOne ? 1 : 0) + weight[dimension]);
  const value = scaled + (bias ? bias[dimension] : 0);
  const factor = plusOne ? [" × (1 + ", weight[dimension], ")"] : [" × ", weight[dimension]];
  const shift = bias ? [" + ", bias[dimension]] : [];
  const formula = `× ${plusOne ? "(1 + γ)" : "γ"}${bias ? " + β" : ""} = `;
  const has = bias ? "a γ and a β of its own" : "a γ of its own";
  const stored = plusOne ? " γ is how far the factor is from 1." : "";
  return lineStep("learned", bias ? "Learned scale and shift" : "Learned scale", `Each dimension has ${has}, the same for all tokens.${stored}`, [[formula, normal, ...factor, ...shift, " = ", value]], value);
}

/** @type {Record<string, (x: number) => (string | number)[]>} */
const WRITTEN = {
  gelu: (x) => ["½ _x_ (1 + erf(_x_ / √2)) = ½ × ", x, " × (1 + erf(", x / Math.SQRT2, "))"],
  gelu_tanh: (x) => ["½ _x_ (1 + tanh(√(2/π) (_x_ + 0.044715 _x_³))) = ½ × ", x, " × (1 + tanh(", Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3), "))"],
  quick_gelu: (x) => ["_x_ / (1 + exp(−1.702 _x_)) = ", x, " / (1 + ", Math.exp(-1.702 * x), ")"],
  relu: (x) => ["max(_x_, 0) = max(", x, ", 0)"],
  silu: (x) => ["_x_ / (1 + exp(−_x_)) = ", x, " / (1 + ", Math.exp(-x), ")"],
  tanh: (x) => ["tanh(_x_) = tanh(", x, ")"],
};

/** @param {string} activation @param {number} x @returns {Step} */
function activationStep(activation, x) {
  const value = ACTIVATIONS[activation](x);
  const written = (WRITTEN[activation === "gelu_fast" ? "gelu_tanh" : activation] ?? (() => [`${activation}(_x_)`]))(x);
  const says = "Without it, two matrices in a row would act as one. It lets numbers above zero through and holds back those below.";
  return { id: "activation", title: `Activation: ${activation}`, says, sum: null, lines: [[...written, " = ", value]], value };
}

/**
 * The embedding worked out: rows of tables added up, their norm, and a projection where there is one.
 */

/** What layer 0 reads, or the projection before it, whole. @param {Teller} at */
async function summedVector(at) {
  return (await embeddingOf(at.source, at.tokens, at.place.position)).values;
}

/** The same in one dimension. @param {Teller} at @returns {Promise<Step[]>} */
export async function summed(at) {
  const { position, dimension } = at.place;
  const { rows, sum: x, norm } = await embeddingOf(at.source, at.tokens, position);
  const scaled = at.built.embedScale !== 1;
  // The row comes first: on a narrow page the end is cut off.
  const whose = {
    word: `words: ${tokenName(at.tokens, position)}`,
    position: `positions: position ${position}`,
    segment: `segments: text ${at.tokens.segment[position] ? "B" : "A"}`,
  };
  const terms = rows.map(({ name, row, scale, numbers }) => ({
    name: `row ${row} of ${whose[name]}`,
    factors: scaled ? [numbers[dimension], scale] : [],
    value: numbers[dimension] * scale,
  }));
  const one = "A row of a learned table, one for each token of the vocabulary. It does not depend on the place of the token.";
  const several = "Each is a row of a learned table: one for the word, one for its position, and with two texts one for the text.";
  const [title, says] = rows.length > 1 ? ["Look up and add", several] : ["Look up", one];
  const sum = sumStep("embeddings", title, scaled ? `${says} This model multiplies the rows of its words.` : says, terms, scaled ? ["row", "scale"] : []);
  return norm ? [sum, ...normSteps({ x, dimension, norm })] : [sum];
}

/** @param {Teller} at */
export async function embed(at) {
  if (!at.built.embedProject) return summed(at);
  const { dimension } = at.place;
  const [x, w, bias] = await Promise.all([summedVector(at), at.weight("body.embed_project.weight", dimension, null), at.bias("body.embed_project.bias", dimension, null)]);
  const says = `The rows of the tables have ${x.length} numbers, and the stream has ${at.source.shape.dModel}: a matrix makes each of these from all of those.`;
  return linear(says, products(x, w, dimensionName, to("embed_input")), ["x", "W"], bias, "Project");
}

/**
 * Quantities of single heads worked out, and what the heads add.
 */

/**
 * A query, key or value as its matrix makes it, and its norm where it has one.
 *
 * @param {Teller} at
 * @param {string} id  of the step
 * @returns {Promise<Step[]>}
 */
export async function projected(at, id) {
  const name = id.replace("_unrotated", "");
  const { dHead } = at.source.shape;
  const head = name === "query" ? at.place.head : at.keyHead;
  const row = head * dHead + at.place.dimension;
  const letter = name[0].toUpperCase();
  const weight = `attention.${name}`;
  const shared = name === "query" ? "" : ` ${sharing(at.example, at.place.head)}`;
  const { x, steps } = await multiplied(at, id, weight, row, `W_${letter}`, (count) =>
    `One number of the ${name} is all ${count} numbers of the token, each times a number of W_${letter}, added up: how much the token has of what this row of W_${letter} asks for.${shared}`.trim());
  const { norm } = at.step(id);
  return norm ? [...steps, ...(await normOfHead(at, { weight, norm, head, x }))] : steps;
}

/** One number that a matrix makes of what the step reads, and what that is. @param {Teller} at @param {string} id  of the step @param {string} weight @param {number} row @param {string} letters @param {(count: number) => string} says */
async function multiplied(at, id, weight, row, letters, says) {
  const [{ x, steps, to: way }, w, bias] = await Promise.all([at.input(id), at.weight(`${weight}.weight`, row), at.bias(`${weight}.bias`, row)]);
  return { x, steps: [...steps, ...linear(says(x.length), products(x, w, dimensionName, way), ["x", letters], bias)] };
}

/**
 * The norm of a query or key: over the numbers of its head, or of all heads.
 *
 * @param {Teller} at
 * @param {{weight: string, norm: string, head: number, x: Float32Array}} made  by which matrix, of what
 */
async function normOfHead(at, { weight, norm: name, head, x }) {
  const { dHead } = at.source.shape;
  const norm = await at.norm(name);
  const alone = at.built.queryKeyNorm === "head";
  const first = alone ? head * dHead : 0;
  const matrix = await at.weight(`${weight}.weight`);
  const bias = await at.source.weights(`${weight}.bias`, at.place.layer, null);
  const made = timesRows(matrix, x);
  const all = Float32Array.from(norm.weight, (_, i) => made[first + i] + (bias ? bias.values[first + i] : 0));
  const dimension = at.place.dimension + (alone ? 0 : head * dHead);
  return normSteps({ x: all, dimension, norm, whose: alone ? "of this head" : "of all heads" });
}

/**
 * A query or key turned by where its token stands (Su et al. 2021).
 *
 * @param {Teller} at
 * @param {"query" | "key"} name
 * @returns {Promise<Step[]>}
 */
export async function turned(at, name) {
  const { layer, position, dimension } = at.place;
  const { rotary } = at.example.looking(layer);
  if (!rotary) throw new RangeError(`layer ${layer} turns no queries and keys`);
  const { amplitude, frequencies } = rotary;
  const from = `${name}_unrotated`;
  const x = await at.headRow(from, name === "query" ? at.place.head : at.keyHead);
  const count = frequencies.length;
  const term = (/** @type {number} */ i, /** @type {number} */ factor) => ({ name: dimensionName(i), factors: [x[i], factor], value: x[i] * factor, to: to(from)(i) });
  if (dimension >= 2 * count) {
    const says = `Only the first ${2 * count} of ${x.length} numbers are turned by position. This one stays.`;
    return [sumStep("kept", "Not turned", says, [{ ...term(dimension, 1), factors: [] }])];
  }
  const frequency = frequencies[dimension % count];
  const angle = position * frequency;
  const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
  const [i, j] = [dimension % count, (dimension % count) + count];
  const says = `Dimensions ${i} and ${j} are a pair, which is turned like the hand of a clock: by where the token stands, times a frequency that is the pair's own. A product of query and key then depends on how far apart the two tokens are.`;
  const turn = `What the pair is after that, in this dimension: ${dimension < count ? "the first times the cosine, less the second times the sine" : "the second times the cosine, and the first times the sine"}.`;
  const scaled = amplitude === 1 ? [] : [["× amplitude: ", cosine * amplitude, " and ", sine * amplitude]];
  const terms = dimension < count ? [term(i, cosine * amplitude), term(j, -sine * amplitude)] : [term(j, cosine * amplitude), term(i, sine * amplitude)];
  return [
    lineStep("angle", "Angle", says, [
      [`_angle_ = position × frequency = ${position} × ${exactly(frequency)} = `, angle],
      ["cos(_angle_) = ", cosine],
      ["sin(_angle_) = ", sine],
      ...scaled,
    ], angle),
    sumStep("turn", "Turn", turn, terms, ["x", "turn"]),
  ];
}

/** With eight digits that matter, so that its product is right as written. @param {number} frequency */
function exactly(frequency) {
  const decimals = frequency > 0 ? 7 - Math.floor(Math.log10(frequency)) : 0;
  return frequency.toFixed(decimals).replace(/\.?0+$/, "");
}

/** @param {Teller} at */
export async function z(at) {
  const { dimension } = at.place;
  const [probs, values] = await Promise.all([at.headRow("probs"), at.ofHead("value", at.keyHead)]);
  const width = values.length / probs.length;
  const own = Float32Array.from(probs, (_, key) => values[key * width + dimension]);
  const name = (/** @type {number} */ key) => `${tokenName(at.tokens, key)} (${key})`;
  const way = (/** @type {number} */ key) => ({ number: "", key });
  const says = ["The values of all tokens, each times the weight with which this token looks there.", sharing(at.example, at.place.head)].filter(Boolean).join(" ");
  return [sumStep("mixture", "Weigh the values", says, products(probs, own, name, way), [translated`weight`, "value"])];
}

/** @param {Teller} at */
export async function headOut(at) {
  const { head, dimension } = at.place;
  const [own, row] = await Promise.all([at.headRow("z"), at.weight("attention.output.weight", dimension)]);
  const w = row.subarray(head * own.length, (head + 1) * own.length);
  const says = `W_O turns the ${own.length} numbers of a head into ${at.source.shape.dModel}, as many as the stream has.`;
  return [sumStep("products", "Multiply and add up", says, products(own, w, dimensionName, to("z")), ["z", "W_O"])];
}

/** @param {Teller} at */
export async function attnOut(at) {
  const { dimension } = at.place;
  const { heads, dHead } = at.source.shape;
  const [row, bias, own] = await Promise.all([
    at.weight("attention.output.weight", dimension),
    at.bias("attention.output.bias", dimension),
    headsAt(at.source, "z", at.place.layer, at.place.position),
  ]);
  const parts = own.map((one, head) => total(Array.from(one, (value, i) => value * row[head * dHead + i])));
  const terms = parts.map((value, head) => ({ name: `head ${head}`, factors: [], value, to: { number: "head_out", heads: [head], dimension } }));
  const says = `z of the ${heads} heads stand one behind the other: ${heads} × ${dHead} = ${heads * dHead} numbers. They are multiplied with W_O as one vector; each head's part of that sum is what it adds.`;
  return linear(says, terms, [], bias, "Concatenate, and multiply with W_O");
}

/**
 * The output head worked out: what the decoder reads, a logit, and its part of the softmax.
 *
 * BERT: decoder(LayerNorm(activation(W·x + b))) + bias. GPT-2: LayerNorm(x) times the word embeddings.
 * ModernBERT: a last norm as GPT-2, then a head as BERT. Gemma 2: soft-capped logits.
 */

/** The last stream, and where a dimension of it is worked out. @param {Teller} at */
async function last(at) {
  const layer = at.source.shape.layers - 1;
  return { x: await at.row("resid_post", layer), way: to("resid_post", { layer }) };
}

/** What the output head reads, whole: the last norm of the stream, or the stream. @param {Teller} at */
async function finalNormed(at) {
  const { x } = await last(at);
  return at.built.finalNorm ? normed(x, await at.norm("body.final_norm", null)).values : x;
}

/** activation(W·x + b) in all dimensions. @param {Teller} at @param {Float32Array} x */
async function transformed(at, x) {
  const [w, bias] = await Promise.all([at.weight("head.transform.weight", null, null), at.source.weights("head.transform.bias", null, null)]);
  const activation = ACTIVATIONS[at.built.headActivation];
  return Float32Array.from(timesRows(w, x), (sum, i) => activation(sum + (bias ? bias.values[i] : 0)));
}

/** What the decoder reads, whole. @param {Teller} at */
async function outputVector(at) {
  const x = await finalNormed(at);
  return at.built.transform ? normed(await transformed(at, x), await at.norm("head.norm", null)).values : x;
}

/** The last norm. @param {Teller} at @returns {Promise<Step[]>} */
async function outputFinal(at) {
  const { x, way } = await last(at);
  return normSteps({ x, dimension: at.place.dimension, norm: await at.norm("body.final_norm", null), to: way });
}

/** @param {Teller} at @returns {Promise<Step[]>} */
async function outputHidden(at) {
  const { dimension } = at.place;
  if (!at.built.transform) return outputFinal(at);
  const way = at.built.finalNorm ? to("hidden") : (await last(at)).way;
  const x = await finalNormed(at);
  const [w, offset, all, norm] = await Promise.all([
    at.weight("head.transform.weight", dimension, null),
    at.bias("head.transform.bias", dimension, null),
    transformed(at, x),
    at.norm("head.norm", null),
  ]);
  const before = linear("The head has a matrix of its own before the vocabulary.", products(x, w, dimensionName, way), ["x", "W"], offset);
  return [...before, activationStep(at.built.headActivation, before[before.length - 1].value), ...normSteps({ x: all, dimension, norm })];
}

/** @param {Teller} at @returns {Promise<Step[]>} */
async function outputLogits(at) {
  const { dimension: id } = at.place;
  const own = await at.source.weights("head.decoder.weight", null, id);
  const [x, row, bias] = await Promise.all([
    outputVector(at),
    own ? own.values : at.weight("body.word.weight", id, null),
    at.bias("head.decoder.bias", id, null),
  ]);
  const tied = own ? "the decoder's row of this token" : "the word embedding of this token, which is used a second time here";
  const says = `What the model has made of this place, times ${tied}. The better they fit, the larger the logit.`;
  const steps = linear(says, products(x, row, dimensionName, to("head_hidden")), ["x", own ? "W" : "E"], bias);
  return at.built.logitSoftCap ? [...steps, capStep("logit", steps[steps.length - 1].value, at.built.logitSoftCap)] : steps;
}

/**
 * From a logit to a probability.
 *
 * @param {number} logit
 * @param {Candidate[]} candidates  the most probable first
 * @returns {Step}
 */
export function softmaxStep(logit, candidates) {
  const [first] = candidates;
  // The first one's exponential is 1: its share says what all of them add up to.
  const denominator = 1 / first.prob;
  const exp = Math.exp(logit - first.logit);
  const value = exp / denominator;
  const says = "Every logit becomes positive by the exponential, and its share of their sum is the probability. The largest logit is subtracted first; it cancels out.";
  return lineStep("softmax", "Softmax", says, [
    ["exp(_logit_ − largest) = exp(", logit, " − ", first.logit, ") = ", exp],
    ["_probability_ = ", exp, " / ", denominator, " = ", value],
  ], value);
}

/**
 * Every quantity of a pass, worked out at one place: name for name the table of layers/layer.py, and
 * the norms and output heads between them. wiring.js says which of them a layer has.
 *
 * @typedef {object} Worked  one quantity
 * @property {string} id
 * @property {string} label
 * @property {string} group
 * @property {string} says  in words, what the whole vector is
 * @property {"model" | "head" | "mlp" | "vocabulary"} of  its last axis, or one like it
 * @property {boolean} layered  each layer has one
 * @property {(built: Built) => boolean} there  models that have it; of a layer wiring.js says it
 * @property {boolean} headed  each head has one
 * @property {boolean} read  the engine gives it
 * @property {(at: Teller) => Promise<Step[]>} tell
 */

/**
 * @param {string} id
 * @param {string} group
 * @param {string} label
 * @param {string} says
 * @param {Worked["of"]} of
 * @param {Worked["tell"]} tell
 * @param {Partial<Worked>} [more]
 * @returns {Worked}
 */
function worked(id, group, label, says, of, tell, more = {}) {
  return { id, group, label, says, of, tell, layered: true, headed: of === "head", there: () => true, read: true, ...more };
}

/** @param {string} id @param {string} group @param {string} label @param {string} says */
function normQuantity(id, group, label, says) {
  return worked(id, group, label, says, "model", (at) => between(at, id), { read: false });
}

/** What several heads may share. */
const OF_KEYS = new Set(["key_unrotated", "key", "value"]);

/** @type {Worked[]} */
export const WORKED = [
  worked("embed_input", "Embedding", "what the projection reads", "the rows of the tables, added up and normed", "model", summed, { layered: false, there: ({ embedProject }) => embedProject, read: false }),
  worked("embed", "Embedding", "embed", "what enters layer 0", "model", embed, { layered: false }),
  normQuantity("attention_input", "Attention", "LayerNorm before attention", "what W_Q, W_K and W_V read"),
  worked("query_unrotated", "Attention", "query_unrotated", "what a token looks for, before it is turned", "head", (at) => projected(at, "query_unrotated")),
  worked("key_unrotated", "Attention", "key_unrotated", "what it is found by, before it is turned", "head", (at) => projected(at, "key_unrotated")),
  worked("query", "Attention", "query", "what a token looks for", "head", (at) => (at.built.rotary ? turned : projected)(at, "query")),
  worked("key", "Attention", "key", "what it is found by", "head", (at) => (at.built.rotary ? turned : projected)(at, "key")),
  worked("value", "Attention", "value", "what it hands on", "head", (at) => projected(at, "value")),
  worked("z", "Attention", "z", "the mean of the values, by the weights", "head", z),
  worked("head_out", "Attention", "head_out", "what one head adds to the stream", "model", headOut, { headed: true }),
  worked("attn_out", "Attention", "attn_out", "what all heads add to the stream", "model", attnOut),
  normQuantity("attention_output", "Attention", "LayerNorm after attention", "what is added to the stream of it"),
  worked("resid_mid", "Stream", "resid_mid", "the stream after attention", "model", (at) => added(at, "attention")),
  normQuantity("mlp_input", "MLP", "LayerNorm before the MLP", "what W_in reads"),
  worked("mlp_gate", "MLP", "mlp_gate", "each neuron's gate before its activation", "mlp", (at) => neuron(at, "mlp_gate")),
  worked("mlp_pre", "MLP", "mlp_pre", "each neuron before its activation", "mlp", (at) => neuron(at, "mlp_pre")),
  worked("mlp_post", "MLP", "mlp_post", "each neuron after its activation", "mlp", fired),
  worked("mlp_out", "MLP", "mlp_out", "what all neurons add to the stream", "model", mlpOut),
  normQuantity("mlp_output", "MLP", "LayerNorm after the MLP", "what is added to the stream of it"),
  worked("resid_post", "Stream", "resid_post", "the stream after the MLP: what the next layer reads", "model", (at) => added(at, "mlp")),
  worked("hidden", "Output", "the last LayerNorm", "what the output head reads", "model", outputFinal, { layered: false, there: ({ finalNorm, transform }) => finalNorm && transform, read: false }),
  worked("head_hidden", "Output", "what the decoder reads", "the stream made ready for the vocabulary", "model", outputHidden, { layered: false, read: false }),
  worked("logits", "Output", "logits", "a number for each token of the vocabulary", "vocabulary", outputLogits, { layered: false }),
];

/** The quantities that a model has in some layer, by its own names. @param {Shape} shape */
export function workedIn({ built, predicts, layers }) {
  const known = new Set(["head_out", ...Array.from({ length: layers }, (_, n) => layerSteps(built, n)).flat().map(({ id }) => id)]);
  const has = (/** @type {Worked} */ { id, layered, group, there }) => (layered ? known.has(id) : there(built) && (group !== "Output" || predicts !== "none"));
  const name = normName(built);
  // With a gate the activation is that of another number.
  const labelled = (/** @type {Worked} */ one) => ({ ...one, label: one.label.replace("LayerNorm", name), says: saysOf(one, built) });
  return WORKED.filter(has).map(labelled);
}

/** @param {Worked} quantity @param {Built} built */
function saysOf({ id, says }, { gated, rotary, parallel }) {
  if (gated && id === "mlp_pre") return "what the gate of each neuron lets through";
  if (gated && id === "mlp_post") return "each neuron after its gate";
  if (gated && id === "mlp_input") return "what W_in and W_gate read";
  if (rotary && (id === "query" || id === "key")) return `${says}, turned by where it stands`;
  if (parallel && id === "resid_mid") return "the stream and what attention adds";
  return says;
}

/**
 * All numbers of a quantity at the place.
 *
 * @param {Worked} quantity  not the logits
 * @param {Teller} at
 * @returns {Promise<Float32Array>}
 */
export async function vectorAt({ id, headed, layered }, at) {
  if (id === "embed_input") return summedVector(at);
  if (id === "hidden") return finalNormed(at);
  if (id === "head_hidden") return outputVector(at);
  if (!layered) return at.row(id, null);
  if (headed) return at.headRow(id, OF_KEYS.has(id) ? at.keyHead : at.place.head);
  return at.vector(at.find(id) ? id : "resid_pre");
}

/** A norm that stands between two quantities. @param {Teller} at @param {string} id @returns {Promise<Step[]>} */
async function between(at, id) {
  const { dimension } = at.place;
  const own = at.find(id);
  if (!own) {
    const x = await at.row("resid_pre");
    const says = "This layer has no norm before attention: it reads the stream unchanged.";
    return [lineStep("no-norm", "No norm", says, [["_x_ = ", x[dimension]]], x[dimension])];
  }
  const [from] = own.reads;
  return normSteps({ x: await at.vector(from), dimension, norm: await at.norm(own.norm), to: at.way(from) });
}

/** resid_mid or resid_post. @param {Teller} at @param {"attention" | "mlp"} part */
async function added(at, part) {
  const { dimension } = at.place;
  const { reads: [before, out], norm } = at.step(part === "attention" ? "resid_mid" : "resid_post");
  const [stream, change] = await Promise.all([at.vector(before), at.vector(out)]);
  const after = at.step(out).between ? `, after ${at.normName}` : "";
  const terms = [
    { name: `${before}: the stream as it was`, factors: [], value: stream[dimension], to: at.way(before)(dimension) },
    { name: part === "attention" ? `${out}: what attention adds${after}` : `${out}: what the MLP adds${after}`, factors: [], value: change[dimension], to: to(out)(dimension) },
  ];
  const sum = sumStep("sum", "Add to the stream", "Nothing is replaced: what was there stays, and something is added.", terms);
  if (!norm) return [sum];
  const x = Float32Array.from(stream, (value, i) => value + change[i]);
  return [sum, ...normSteps({ x, dimension, norm: await at.norm(norm) })];
}

/** mlp_pre or mlp_gate. @param {Teller} at @param {"mlp_pre" | "mlp_gate"} id */
async function neuron(at, id) {
  const { dimension } = at.place;
  const [weight, letters] = id === "mlp_gate" ? ["mlp.gate", "W_gate"] : ["mlp.up", "W_in"];
  return (await multiplied(at, id, weight, dimension, letters, (count) => `Neuron ${dimension} has ${count} weights, one for each dimension of the token.`)).steps;
}

/** @param {Teller} at @returns {Promise<Step[]>} */
async function fired(at) {
  const { dimension } = at.place;
  const { activation, gated } = at.built;
  const enters = gated ? "mlp_gate" : "mlp_pre";
  const before = await neuron(at, enters);
  // With an edit of what enters the activation it reads what the edit left.
  const made = activationStep(activation, (await at.row(enters))[dimension]);
  if (!gated) return [...before, made];
  const pre = (await at.row("mlp_pre"))[dimension];
  const says = `A second matrix, W_in, makes a number for this neuron too, mlp_pre. What ${activation} gives, the gate, says how much of it passes.`;
  const term = { name: `neuron ${dimension}`, factors: [made.value, pre], value: made.value * pre, to: to("mlp_pre")(dimension) };
  return [...before, made, sumStep("gate", "The gate", says, [term], ["gate", "mlp_pre"])];
}

/** @param {Teller} at */
async function mlpOut(at) {
  const { dimension } = at.place;
  const [post, w, bias] = await Promise.all([at.row("mlp_post"), at.weight("mlp.down.weight", dimension), at.bias("mlp.down.bias", dimension)]);
  const says = `All ${post.length} neurons add to this dimension, each as strongly as it fires times its weight.`;
  return linear(says, products(post, w, (i) => `neuron ${i}`, to("mlp_post")), ["mlp_post", "W_out"], bias);
}
