/**
 * Why a head looks there: a score as a sum over pairs of what was written to the stream, as analysis/reasons.py.
 *
 * The stream is the sum of what embeddings, heads and MLPs wrote. With what every norm divides by held, a query and a
 * key are sums of these parts, and their product is a sum over pairs.
 *
 * @import { Tokens } from "./data.js"
 * @import { Vectors } from "./example.js"
 * @import { Norm } from "./norms.js"
 * @import { Rotary } from "./rotation.js"
 * @import { Asked, Pair, Writer } from "./reasons.js"
 * @import { Source } from "./source.js"
 *
 * @typedef {Writer & {numbers: Float64Array}} Part  of a query or key
 */

import { embeddingOf, normNamed, normed } from "./norms.js";
import { placedAt } from "./rotation.js";
import { keyHeadOf } from "./sharing.js";
import { dot, timesRows } from "./softmax.js";
import { headsAt, rowAt, weightOf } from "./source.js";

/**
 * The pairs of one score, the largest first.
 *
 * @param {Source} source
 * @param {Tokens} tokens
 * @param {Vectors} vectors  of the head
 * @param {Asked} asked
 * @param {boolean} [features]  they stand in the place of what they are parts of
 * @returns {Promise<Pair[]>}
 */
export async function pairsOf(source, tokens, { scale, rotary = null }, { layer, head, query, key }, features = false) {
  const [queries, keys] = await Promise.all([
    partsOf(source, tokens, rotary, { name: "query", layer, head, position: query, features }),
    partsOf(source, tokens, rotary, { name: "key", layer, head: keyHeadOf({ n_heads: source.shape.heads, n_kv_heads: source.shape.built.keyHeads }, head), position: key, features }),
  ]);
  const pairs = queries.flatMap((one) => keys.map((other) => ({ query: one, key: other, score: dot(one.numbers, other.numbers) * scale })));
  return pairs.sort((one, other) => Math.abs(other.score) - Math.abs(one.score));
}

/**
 * The parts of a head's query or key at a position.
 *
 * @param {Source} source
 * @param {Tokens} tokens
 * @param {Rotary | null} rotary
 * @param {{name: "query" | "key", layer: number, head: number, position: number, features: boolean}} place
 * @returns {Promise<Part[]>}
 */
async function partsOf(source, tokens, rotary, { name, layer, head, position, features }) {
  const { dHead, dModel, built } = source.shape;
  const before = (built.norm === "before" || built.norm === "both") && (layer > 0 || built.firstNorm);
  const entering = await rowAt(source, "resid_pre", layer, position);
  const stream = await written(source, tokens, layer, position, features);
  const input = before ? through(await normNamed(source, "attention_norm", layer), entering, stream, `attention norm bias ${layer}`) : stream;
  const [matrix, bias] = await Promise.all([weightOf(source, `attention.${name}.weight`, layer, null), source.weights(`attention.${name}.bias`, layer, null)]);
  const own = built.queryKeyNorm === "width" ? [0, matrix.length / dModel] : [head * dHead, (head + 1) * dHead];
  /** @type {Part[]} */
  let parts = input.map((part) => ({ ...part, numbers: timesRows(matrix, part.numbers, own[0], own[1]).subarray(own[0]) }));
  if (bias) parts.push({ label: `${name} bias`, head: null, numbers: Float64Array.from(bias.values.subarray(own[0], own[1])) });
  if (built.queryKeyNorm !== "none") {
    parts = through(await normNamed(source, `attention.${name}_norm`, layer), total(parts), parts, `${name} norm bias`);
    const from = built.queryKeyNorm === "width" ? head * dHead : 0;
    parts = parts.map((part) => ({ ...part, numbers: part.numbers.subarray(from, from + dHead) }));
  }
  return rotary ? parts.map((part) => ({ ...part, numbers: placedAt(part.numbers, rotary, position) })) : parts;
}

/**
 * What was written to the stream in front of a layer, at one position; its sum is resid_pre.
 *
 * @param {Source} source
 * @param {Tokens} tokens
 * @param {number} layer
 * @param {number} position
 * @param {boolean} features
 */
async function written(source, tokens, layer, position, features) {
  const { built } = source.shape;
  const [place, of] = (features && source.shape.features) || ["", -1];
  /** The features, where this is their place. @param {string} name @param {number} at @param {Part[]} own */
  const split = async (name, at, own) => (name === place && at === of ? featuresAt(source, position) : own);
  let parts = await embedded(source, tokens, position);
  for (let below = 0; below < layer; below += 1) {
    parts = await split("resid_pre", below, parts);
    const at = (/** @type {string} */ name) => rowAt(source, name, below, position);
    const [heads, attention, mlp, pre, mid, bias] = await Promise.all([headsAt(source, "head_out", below, position), at("attn_out"), at("mlp_out"), at("resid_pre"), at("resid_mid"), source.weights("attention.output.bias", below, null)]);
    /** @type {Part[]} */
    const ofHeads = heads.map((numbers, head) => ({ label: `head ${below}-${head}`, head: { layer: below, head }, numbers: Float64Array.from(numbers) }));
    if (bias) ofHeads.push({ label: `attention bias ${below}`, head: null, numbers: Float64Array.from(bias.values) });
    /** @type {Part[]} */
    const ofMlp = [{ label: `mlp ${below}`, head: null, numbers: Float64Array.from(mlp) }];
    for (const [block, wrote, own, entering] of /** @type {[string, ArrayLike<number>, Part[], ArrayLike<number>][]} */ ([["attention", attention, ofHeads, pre], ["mlp", mlp, ofMlp, mid]])) {
      const behind = built.norm === "output" || built.norm === "both";
      const norm = behind ? await normNamed(source, `${block}_output_norm`, below) : built.norm === "after" ? await normNamed(source, `${block}_norm`, below) : null;
      const given = await split(block === "mlp" ? "mlp_out" : "attn_out", below, own);
      const carried = behind && norm ? through(norm, wrote, given, `${block} output norm bias ${below}`) : given;
      parts = [...parts, ...carried];
      if (built.norm === "after" && norm) parts = through(norm, Float64Array.from(wrote, (value, i) => value + entering[i]), parts, `${block} norm bias ${below}`);
      parts = await split(block === "mlp" ? "resid_post" : "resid_mid", below, parts);
    }
  }
  return split("resid_pre", layer, parts);
}

/** What features, and what they leave, are at a position. @param {Source} source @param {number} position @returns {Promise<Part[]>} */
async function featuresAt(source, position) {
  const { names, shape: [, width], values } = await source.features(position);
  return names.map((label, i) => ({ label, head: null, numbers: Float64Array.from(values.subarray(i * width, (i + 1) * width)) }));
}

/** What enters layer 0, by the tables it is read from; one part where a matrix follows, or an edit wrote it. @param {Source} source @param {Tokens} tokens @param {number} position @returns {Promise<Part[]>} */
async function embedded(source, tokens, position) {
  const embed = await rowAt(source, "embed", null, position);
  const whole = [{ label: "embeddings", head: null, numbers: Float64Array.from(embed) }];
  if (source.shape.built.embedProject) return whole;
  const { rows, sum, norm } = await embeddingOf(source, tokens, position);
  const parts = rows.map(({ name, scale, numbers }) => ({ label: `${name} embedding`, head: null, numbers: Float64Array.from(numbers, (value) => value * scale) }));
  const found = norm ? through(norm, sum, parts, "embedding norm bias") : parts;
  const apart = total(found).map((value, i) => value - embed[i]);
  return largest(apart) > 1e-3 * largest(embed) ? whole : found;
}

/** The parts behind a norm that divides by what it divided this x by; its bias is a part of its own. @param {Norm} norm @param {ArrayLike<number>} x @param {Part[]} parts @param {string} name  of the bias @returns {Part[]} */
function through(norm, x, parts, name) {
  const { variance } = normed(x, norm);
  const { kind, weight, bias, plusOne, eps } = norm;
  const scale = 1 / Math.sqrt(variance + eps);
  const carried = parts.map((part) => {
    const mean = kind === "rms" ? 0 : part.numbers.reduce((sum, value) => sum + value, 0) / part.numbers.length;
    return { ...part, numbers: part.numbers.map((value, i) => (value - mean) * scale * ((plusOne ? 1 : 0) + weight[i])) };
  });
  return bias ? [...carried, { label: name, head: null, numbers: Float64Array.from(bias) }] : carried;
}

/** @param {Part[]} parts */
function total(parts) {
  const out = new Float64Array(parts[0].numbers.length);
  for (const { numbers } of parts) for (let i = 0; i < out.length; i += 1) out[i] += numbers[i];
  return out;
}

/** @param {ArrayLike<number>} numbers */
function largest(numbers) {
  return Array.from(numbers).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}
