/**
 * What is read of passes: predictions, next tokens, what each layer would predict, which head matters, a head in
 * many texts, and what the views of a page are given.
 *
 * @import { ArrayEntry, ExampleHeader, Lens } from "../core/data/data.js"
 * @import { Sources } from "./edits.js"
 * @import { Candidate, Edit, Prediction, Predicts, Question, Sampling } from "./engine.js"
 * @import { Config } from "./model.js"
 * @import { Tensor } from "./tensor.js"
 * @import { Tokenizer } from "./tokens.js"
 */

import { codesOf } from "../core/data/attention.js";
import { softmax } from "../core/data/softmax.js";
import { Plan } from "./edits.js";
import { Pass } from "./pass.js";
import { rowsOf, tensor } from "./tensor.js";

/** Candidates of a prediction. */
const TOP = 10;
const NOT_FINITE = "the logits have NaN or infinity, so nothing can be predicted";

/** What a model predicts. @param {Config} config @returns {Predicts} */
export function predicts({ task }) {
  if (task === "causal-lm") return "causal";
  if (task === "sequence-classification") return "classes";
  return task === "none" ? "none" : "masked";
}

/** True where each position has a logit for every token. @param {Config} config */
export function predictsTokens(config) {
  return ["masked", "causal"].includes(predicts(config));
}

/** @typedef {{size: number, string: (id: number) => string}} Names  what the candidates of a prediction are: tokens, or classes */

/** @param {Config} config @param {Tokenizer} tokenizer @returns {Names} */
export function namesOf(config, tokenizer) {
  if (predicts(config) !== "classes") return tokenizer;
  return { size: config.labels.length, string: (id) => config.labels[id] };
}

/**
 * The token at each mask token, or the one after the last; the class of the text, at its first position.
 *
 * @param {Pass} pass
 * @param {Tokenizer} tokenizer
 * @returns {Prediction[]}
 */
export function predictions(pass, tokenizer) {
  const kind = predicts(pass.model.config);
  if (kind === "none") return [];
  const { ids } = pass.tokens;
  const masks = [...ids.keys()].filter((i) => ids[i] === tokenizer.mask);
  const places = { causal: [ids.length - 1], classes: [0], masked: masks }[kind];
  const names = namesOf(pass.model.config, tokenizer);
  return places.map((position) => ({ position, candidates: candidates(pass.logitsAt(position), names) }));
}

/**
 * The most probable tokens or classes, or those that are asked for.
 *
 * @param {Float32Array} logits  (vocab) or (label)
 * @param {Names} names
 * @param {number[]} [ids]
 * @returns {Candidate[]}
 */
export function candidates(logits, names, ids) {
  if (!Number.isFinite(largestOf(logits))) throw new Error(NOT_FINITE);
  const probs = softmax(logits);
  // Some checkpoints have more logits than their tokenizer has tokens.
  const chosen = ids ?? best(probs.subarray(0, names.size), TOP);
  return chosen.map((id) => ({ id, text: names.string(id), logit: logits[id], prob: probs[id] }));
}

/** NaN where one of them is. @param {ArrayLike<number>} logits */
function largestOf(logits) {
  let largest = -Infinity;
  for (let i = 0; i < logits.length; i += 1) largest = Math.max(largest, logits[i]);
  return largest;
}

/** log of the sum of exp. @param {Float32Array} logits */
function logOfSum(logits) {
  const largest = largestOf(logits);
  let total = 0;
  for (let i = 0; i < logits.length; i += 1) total += Math.exp(logits[i] - largest);
  return largest + Math.log(total);
}

/** log softmax of one token. @param {Float32Array} logits @param {number} id */
export function logProb(logits, id) {
  return logits[id] - logOfSum(logits);
}

/**
 * The places of the largest values, the largest first, ties in order.
 *
 * @param {Float32Array | Float64Array} values
 * @param {number} count
 */
function best(values, count) {
  /** @type {number[]} */
  const found = [];
  values.forEach((value, i) => {
    if (found.length === count && value <= values[found[count - 1]]) return;
    let place = found.length;
    while (place && values[found[place - 1]] < value) place -= 1;
    found.splice(place, 0, i);
    if (found.length > count) found.pop();
  });
  return found;
}

/**
 * softmax(logits / temperature) over the tokens that top-k and top-p leave, 0 elsewhere. With
 * temperature 0 they are 1 for the most probable token.
 *
 * @param {Float32Array} logits
 * @param {Sampling} sampling  within what readAddress and the panel let through
 * @returns {Float64Array}
 */
export function drawnProbs(logits, { temperature, topK, topP }) {
  const largest = largestOf(logits);
  if (!Number.isFinite(largest)) throw new Error("the logits have NaN or infinity, so no next token can be chosen");
  if (temperature === 0) {
    const best = logits.indexOf(largest);
    return Float64Array.from(logits, (_, i) => Number(i === best));
  }
  let cooled = logits.map((logit) => logit / temperature);
  // The largest becomes 0, so that a tiny temperature gives -inf and not inf.
  if (!cooled.every(Number.isFinite)) cooled = logits.map((logit) => (logit - largest) / temperature);
  if (topK !== null) {
    // Those equal to the k-th stay.
    const least = cooled.slice().sort()[Math.max(cooled.length - topK, 0)];
    cooled = cooled.map((logit) => (logit < least ? -Infinity : logit));
  }
  if (topP !== null && topP < 1) cooled = keepTopP(cooled, topP);
  return softmax(cooled);
}

/**
 * The fewest largest logits whose probabilities sum to p or more; −inf for the others.
 *
 * @param {Float32Array} logits
 * @param {number} p
 */
function keepTopP(logits, p) {
  const order = [...logits.keys()].sort((a, b) => logits[a] - logits[b] || a - b);
  const probs = softmax(logits);
  const kept = logits.slice();
  let sum = 0;
  for (const id of order.slice(0, -1)) {
    // From the smallest up, as transformers does.
    sum += Math.fround(probs[id]);
    if (Math.fround(sum) > Math.fround(1 - p)) break;
    kept[id] = -Infinity;
  }
  return kept;
}

/**
 * The first id whose cumulative probability exceeds a number between 0 and 1 that the seed gives.
 *
 * @param {Float64Array} probs
 * @param {number} seed
 * @param {number} turn  another one gives another number
 */
export function draw(probs, seed, turn) {
  const wanted = uniform(seed, turn) * probs.reduce((a, b) => a + b, 0);
  let sum = 0;
  let last = 0;
  for (let id = 0; id < probs.length; id += 1) {
    if (!probs[id]) continue;
    sum += probs[id];
    last = id;
    if (sum > wanted) break;
  }
  return last;
}

/**
 * A number in [0, 1) from a seed and a count, whose bits are mixed. Source of the mixing: C. Wellons,
 * hash-prospector, "16 21f0aaad 15 735a2d97 15".
 *
 * @param {number} seed
 * @param {number} turn
 */
function uniform(seed, turn) {
  let bits = (seed + Math.imul(turn + 1, 0x9e3779b9)) | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x21f0aaad);
  bits = Math.imul(bits ^ (bits >>> 15), 0x735a2d97);
  return ((bits ^ (bits >>> 15)) >>> 0) / 2 ** 32;
}

/** Tokens at each place, and decimals of their probabilities, as in viz/viewing.py. */
const LENS_TOP = 5;
const DECIMALS = 5;
/** Positions that are read at a time: with a large vocabulary each takes about a millisecond. */
const AT_ONCE = 16;

/** What each layer would predict. @param {Pass} pass  of a model with an output head @param {Tokenizer} tokenizer @param {() => Promise<void>} pause  between some positions and the next */
export async function lensOf(pass, tokenizer, pause) {
  const streams = [pass.embed, ...pass.layers.map((layer) => layer.read("resid_post"))];
  /** @type {Lens} */
  const lens = { points: ["embed", ...pass.layers.map((_, n) => `resid_post ${n}`)], probs: [], strings: [] };
  for (const stream of streams) {
    const found = [];
    for (let from = 0; from < pass.length; from += AT_ONCE) {
      found.push(...readRows(pass, rowsOf(stream, from, Math.min(from + AT_ONCE, pass.length)), tokenizer));
      await pause();
    }
    lens.probs.push(found.map((ranks) => ranks.map(({ prob }) => Number(prob.toFixed(DECIMALS)))));
    lens.strings.push(found.map((ranks) => ranks.map(({ text }) => text)));
  }
  return lens;
}

/** The most probable tokens at some positions; `candidates` would list all probabilities of hundreds of rows. @param {Pass} pass @param {Tensor} rows @param {Tokenizer} tokenizer */
function readRows({ model: { body, head, config } }, rows, tokenizer) {
  if (!head) throw new Error(`${config.name} has no head that predicts tokens`);
  const { shape: [count, width], values } = head.forward(body.final(rows));
  return Array.from({ length: count }, (_, row) => {
    const logits = values.subarray(row * width, (row + 1) * width);
    const total = logOfSum(logits);
    if (!Number.isFinite(total)) throw new Error(NOT_FINITE);
    return best(logits.subarray(0, tokenizer.size), LENS_TOP).map((id) => ({ text: tokenizer.string(id), prob: Math.exp(logits[id] - total) }));
  });
}

/**
 * (layer, head): log probability of the token where z of that head is zero as well, less that of the
 * pass itself.
 *
 * @param {Pass} pass
 * @param {Edit[]} edits  those of the pass
 * @param {Sources} sources
 * @param {Question} question
 * @param {() => Promise<void>} pause  between two heads
 * @returns {Promise<import("./tensor.js").Tensor>}
 */
export async function sweep(pass, edits, sources, { position, id }, pause) {
  const { config, layers } = pass.model;
  const before = logProb(pass.logitsAt(position), id);
  const out = tensor([layers.length, config.n_heads]);
  for (const layer of layers.keys()) {
    for (let head = 0; head < config.n_heads; head += 1) {
      const plan = new Plan([...edits, { quantity: "z", change: "zero", layer, head }], config, pass.length, sources);
      const without = new Pass(pass.model, pass.tokens, plan, pass, { layer, name: "z" });
      out.values[layer * config.n_heads + head] = logProb(without.logitsAt(position), id) - before;
      await pause();
    }
  }
  return out;
}

const VECTORS = /** @type {const} */ (["query", "key", "value"]);

/** What the views are told of a pass, as viz/example.py tells it. @param {Pass} pass @returns {ExampleHeader} */
export function headerOf({ tokens, plan, length, model: { config } }) {
  const { causal, d_head, n_heads, n_kv_heads, n_layers, name, rotary, scale, soft_cap, turned, windows } = config;
  const [layers, heads] = [n_layers, n_heads].map((count) => [...Array(count).keys()]);
  const codes = { dtype: "uint8", coding: "sqrt" };
  const arrays = layers.flatMap((layer) => [
    entry("probs", layer, [n_heads, length, length], codes),
    ...VECTORS.map((vector) => entry(vector, layer, [vector === "query" ? n_heads : n_kv_heads, length, d_head])),
  ]);
  return {
    name: "",
    model: name,
    cut: tokens.cut,
    sizes: { n_layers, n_heads, d_head, ...(n_kv_heads !== n_heads && { n_kv_heads }) },
    layers,
    heads,
    texts: tokens.texts,
    tokens: {
      text: tokens.strings,
      raw: tokens.raw.map((raw, i) => (raw === tokens.strings[i] ? null : raw)),
      special: tokens.special,
      segment: tokens.segments,
      piece: tokens.raw.map((raw) => Number(raw.startsWith("##") && raw.length > 2)),
    },
    key_tokens: null,
    causal,
    scale,
    ...(soft_cap && { soft_cap }),
    ...(windows && { windows }),
    ...(rotary && { rotary, turned }),
    edited: plan.list.some(({ quantity }) => quantity === "scores" || quantity === "probs"),
    lens: predictsTokens(config) ? { block: "lens" } : null,
    notes: [],
    arrays,
  };
}

/** @param {ArrayEntry["quantity"]} quantity @param {number} layer @param {number[]} shape @param {object} [codes] @returns {ArrayEntry} */
function entry(quantity, layer, shape, codes = {}) {
  return { block: `${quantity}-${layer}`, quantity, layer, head: null, shape, dtype: "float32", coding: "plain", packing: "none", triangle: false, ...codes };
}

/** The bytes of a block, or some of them. They are the caller's own. @param {Pass} pass @param {string} name @param {number} [from] @param {number} [to] @returns {Uint8Array} */
export function bytesOf(pass, name, from = 0, to = undefined) {
  const [quantity, layer] = name.split("-");
  const { values } = pass.read(quantity, Number(layer));
  if (quantity === "probs") return codesOf(values).slice(from, to);
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength).slice(from, to);
}
