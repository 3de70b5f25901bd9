/**
 * Why a head looks there: a score as a sum over pairs of what was written to the stream, as analysis/reasons.py.
 *
 * The stream is the sum of what embeddings, heads and MLPs wrote. With what every norm divides by held, a query and a
 * key are sums of these parts, and their product is a sum over pairs. What a head wrote is in turn a sum over the tokens
 * that it read, and what it read at one of them a sum of what was written there, down to the words.
 *
 * @import { Tokens } from "./data.js"
 * @import { Vectors } from "./example.js"
 * @import { Norm } from "./norms.js"
 * @import { Asked, Pair, Part, Side, Writer } from "./reasons.js"
 * @import { Source } from "./source.js"
 *
 * @typedef {Writer & {numbers: Float64Array, token?: number, read?: boolean, same?: boolean}} Vector  a part of a query, key
 *   or value; of what a head read, the token where it read it; the same at every position: a bias that no norm or rotation changed
 *
 * @typedef {object} Of  a score
 * @property {Source} source
 * @property {Tokens} tokens
 * @property {Vectors} vectors  of the head
 * @property {Asked} asked
 * @property {boolean} features  they stand in the place of what they are parts of
 *
 * @typedef {object} Way  to what was read
 * @property {"query" | "key"} side
 * @property {Float64Array} other  the part of the other side
 * @property {{layer: number, head: number, token: number | null}[]} heads  each reads at its token what the next wrote
 *   there; all tokens are asked for where the last has none
 *
 * @typedef {{layer: number, head: number, parts: Vector[]}} Apart  parts that what a head wrote is split into; the rest is one more
 */

import { embeddingOf, normNamed, normed } from "./norms.js";
import { placedAt } from "./rotation.js";
import { keyHeadOf } from "./sharing.js";
import { dot, timesRows } from "./softmax.js";
import { headsAt, rowAt, weightOf } from "./source.js";

/**
 * The pairs of one score, the largest first.
 *
 * @param {Of} of
 * @returns {Promise<Pair[]>}
 */
export async function pairsOf(of) {
  const [queries, keys] = await Promise.all([partsOf(of, placeOf(of, "query")), partsOf(of, placeOf(of, "key"))]);
  /** @type {(side: "query" | "key", own: Vector, other: Vector) => Side} */
  const sideOf = (side, { head, ...own }, { numbers }) => ({ head, ...own, open: head && (() => readOf(of, { side, other: numbers, heads: [{ ...head, token: null }] })) });
  const pairs = queries.flatMap((one) => keys.map((other) => ({ query: sideOf("query", one, other), key: sideOf("key", other, one), score: dot(one.numbers, other.numbers) * of.vectors.scale, same: other.same })));
  return pairs.sort((one, other) => Math.abs(other.score) - Math.abs(one.score));
}

/** A query or key of the score. @param {Of} of @param {"query" | "key"} name */
function placeOf({ source, asked }, name) {
  return { name, layer: asked.layer, head: name === "query" ? asked.head : keyHead(source, asked.head), position: asked[name] };
}

/** @param {Source} source @param {number} head */
function keyHead({ shape }, head) {
  return keyHeadOf({ n_heads: shape.heads, n_kv_heads: shape.built.keyHeads }, head);
}

/** What a head read for its part of a score, by token, or what was written at one of them; the largest first. @param {Of} of @param {Way} way @returns {Promise<Part[]>} */
async function readOf(of, { side, other, heads }) {
  const { source, vectors, asked } = of;
  const { dModel, dHead } = source.shape;
  const last = heads[heads.length - 1];
  const value = (/** @type {{layer: number, head: number}} */ { layer, head }, /** @type {number} */ position) => ({ name: /** @type {const} */ ("value"), layer, head: keyHead(source, head), position });
  /** @type {Vector[]} */
  let parts = last.token === null ? (await valuesOf(source, value(last, 0))) : await partsOf(of, value(last, last.token));
  for (let i = heads.length - 1; i >= 0; i -= 1) {
    const { layer, head, token } = heads[i];
    const position = i ? Number(heads[i - 1].token) : asked[side];
    const [matrix, probs] = await Promise.all([weightOf(source, "attention.output.weight", layer, null), headsAt(source, "probs", layer, position)]);
    // What of W_O reads the head: (d_model, d_head).
    const own = Float32Array.from({ length: dModel * dHead }, (_, i) => matrix[Math.floor(i / dHead) * (matrix.length / dModel) + head * dHead + (i % dHead)]);
    const wrote = parts.map((part) => {
      const weight = probs[head][token ?? Number(part.token)];
      return { ...part, read: true, numbers: timesRows(own, part.numbers).map((number) => number * weight) };
    });
    const place = i ? value(heads[i - 1], position) : placeOf(of, side);
    parts = (await partsOf(of, place, { layer, head, parts: wrote })).filter(({ read }) => read);
  }
  const found = parts.map(({ label, head, token, numbers }) => {
    const next = token === undefined ? head && [...heads, { ...head, token: null }] : [...heads.slice(0, -1), { ...last, token }];
    return { label, head, token, score: dot(numbers, other) * vectors.scale, open: next && (() => readOf(of, { side, other, heads: next })) };
  });
  return found.sort((one, two) => Math.abs(two.score) - Math.abs(one.score));
}

/** The values of a head. @param {Source} source @param {{layer: number, head: number}} place @returns {Promise<Vector[]>} */
async function valuesOf(source, { layer, head }) {
  const { shape: [, positions, width], values } = await source.read("value", layer);
  return Array.from({ length: positions }, (_, token) => ({ label: "", head: null, token, numbers: Float64Array.from(values.subarray((head * positions + token) * width, (head * positions + token + 1) * width)) }));
}

/**
 * The parts of a head's query, key or value at a position.
 *
 * @param {Of} of
 * @param {{name: "query" | "key" | "value", layer: number, head: number, position: number}} place
 * @param {Apart} [apart]
 * @returns {Promise<Vector[]>}
 */
async function partsOf({ source, tokens, vectors, features }, { name, layer, head, position }, apart) {
  const { dHead, dModel, built } = source.shape;
  const before = (built.norm === "before" || built.norm === "both") && (layer > 0 || built.firstNorm);
  const normed = name === "value" ? "none" : built.queryKeyNorm;
  const entering = await rowAt(source, "resid_pre", layer, position);
  const stream = await written(source, tokens, layer, position, features, apart);
  const input = before ? through(await normNamed(source, "attention_norm", layer), entering, stream, `attention norm bias ${layer}`) : stream;
  const [matrix, bias] = await Promise.all([weightOf(source, `attention.${name}.weight`, layer, null), source.weights(`attention.${name}.bias`, layer, null)]);
  const own = normed === "width" ? [0, matrix.length / dModel] : [head * dHead, (head + 1) * dHead];
  /** @type {Vector[]} */
  let parts = input.map((part) => ({ ...part, numbers: timesRows(matrix, part.numbers, own[0], own[1]).subarray(own[0]) }));
  if (bias) parts.push({ label: `${name} bias`, head: null, same: true, numbers: Float64Array.from(bias.values.subarray(own[0], own[1])) });
  if (normed !== "none") {
    parts = through(await normNamed(source, `attention.${name}_norm`, layer), total(parts), parts, `${name} norm bias`);
    const from = normed === "width" ? head * dHead : 0;
    parts = parts.map((part) => ({ ...part, numbers: part.numbers.subarray(from, from + dHead) }));
  }
  const rotary = name === "value" ? null : vectors.rotary;
  return rotary ? parts.map((part) => ({ ...part, same: false, numbers: placedAt(part.numbers, rotary, position) })) : parts;
}

/**
 * What was written to the stream in front of a layer, at one position; its sum is resid_pre.
 *
 * @param {Source} source
 * @param {Tokens} tokens
 * @param {number} layer
 * @param {number} position
 * @param {boolean} features
 * @param {Apart} [apart]
 */
async function written(source, tokens, layer, position, features, apart) {
  const { built } = source.shape;
  const [place, of] = (features && source.shape.features) || ["", -1];
  /** The features, where this is their place. @param {string} name @param {number} at @param {Vector[]} own */
  const split = async (name, at, own) => (name === place && at === of ? featuresAt(source, position) : own);
  let parts = await embedded(source, tokens, position);
  for (let below = 0; below < layer; below += 1) {
    parts = await split("resid_pre", below, parts);
    const at = (/** @type {string} */ name) => rowAt(source, name, below, position);
    const [heads, attention, mlp, pre, mid, bias] = await Promise.all([headsAt(source, "head_out", below, position), at("attn_out"), at("mlp_out"), at("resid_pre"), at("resid_mid"), source.weights("attention.output.bias", below, null)]);
    /** @type {Vector[]} */
    const ofHeads = heads.flatMap((wrote, head) => {
      const parts = apart?.layer === below && apart.head === head ? apart.parts : [];
      const left = parts.length ? total(parts).map((number, i) => wrote[i] - number) : Float64Array.from(wrote);
      return [...parts, { label: `head ${below}-${head}`, head: { layer: below, head }, numbers: left }];
    });
    if (bias) ofHeads.push({ label: `attention bias ${below}`, head: null, numbers: Float64Array.from(bias.values) });
    /** @type {Vector[]} */
    const ofMlp = [{ label: `mlp ${below}`, head: null, numbers: Float64Array.from(mlp) }];
    for (const [block, wrote, own, entering] of /** @type {[string, ArrayLike<number>, Vector[], ArrayLike<number>][]} */ ([["attention", attention, ofHeads, pre], ["mlp", mlp, ofMlp, mid]])) {
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

/** What features, and what they leave, are at a position. @param {Source} source @param {number} position @returns {Promise<Vector[]>} */
async function featuresAt(source, position) {
  const { names, shape: [, width], values } = await source.features(position);
  return names.map((label, i) => ({ label, head: null, numbers: Float64Array.from(values.subarray(i * width, (i + 1) * width)) }));
}

/** What enters layer 0, by the tables it is read from; one part where a matrix follows, or an edit wrote it. @param {Source} source @param {Tokens} tokens @param {number} position @returns {Promise<Vector[]>} */
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

/** The parts behind a norm that divides by what it divided this x by; its bias is a part of its own. @param {Norm} norm @param {ArrayLike<number>} x @param {Vector[]} parts @param {string} name  of the bias @returns {Vector[]} */
function through(norm, x, parts, name) {
  const { variance } = normed(x, norm);
  const { kind, weight, bias, plusOne, eps } = norm;
  const scale = 1 / Math.sqrt(variance + eps);
  const carried = parts.map((part) => {
    const mean = kind === "rms" ? 0 : part.numbers.reduce((sum, value) => sum + value, 0) / part.numbers.length;
    return { ...part, same: false, numbers: part.numbers.map((value, i) => (value - mean) * scale * ((plusOne ? 1 : 0) + weight[i])) };
  });
  return bias ? [...carried, { label: name, head: null, same: true, numbers: Float64Array.from(bias) }] : carried;
}

/** @param {Vector[]} parts */
function total(parts) {
  const out = new Float64Array(parts[0].numbers.length);
  for (const { numbers } of parts) for (let i = 0; i < out.length; i += 1) out[i] += numbers[i];
  return out;
}

/** @param {ArrayLike<number>} numbers */
function largest(numbers) {
  return Array.from(numbers).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}
