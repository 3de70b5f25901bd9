/**
 * What the views of a page are given of a pass: the header of an example, and its bytes, as
 * viz/trace_example.py and viz/payload.py give them.
 *
 * @typedef {import("../core/data/data.js").ExampleHeader} ExampleHeader
 * @typedef {import("../core/data/data.js").ArrayEntry} ArrayEntry
 * @typedef {import("./model.js").Config} Config
 */

import { predictsTokens } from "./predictions.js";

const VECTORS = /** @type {const} */ (["query", "key", "value"]);
/** Blocks a side of a thumbnail, as THUMBNAIL in payload.py. */
const THUMBNAIL = 64;

/**
 * @param {import("./pass.js").Pass} pass
 * @returns {ExampleHeader}
 */
export function headerOf(pass) {
  const { config } = pass.model;
  const { tokens, plan } = pass;
  const [layers, heads] = [config.n_layers, config.n_heads].map((count) => [...Array(count).keys()]);
  return {
    name: "",
    model: config.name,
    cut: tokens.cut,
    sizes: sizesOf(config),
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
    causal: config.causal,
    scale: config.scale,
    ...lookingHeader(config),
    edited: plan.list.some(({ quantity }) => quantity === "scores" || quantity === "probs"),
    lens: predictsTokens(config) ? { block: "lens" } : null,
    relevance: null,
    patterns: null,
    notes: [],
    arrays: [...thumbnailEntry(pass), ...layers.flatMap((layer) => entriesOf(pass, layer))],
  };
}

/** The sizes of a model; n_kv_heads where heads share keys. @param {Config} config */
function sizesOf({ n_layers, n_heads, n_kv_heads, d_head }) {
  return { n_layers, n_heads, d_head, ...(n_kv_heads !== n_heads && { n_kv_heads }) };
}

/** How scores become weights and how queries and keys are turned, where the model has any of it. @param {Config} config */
function lookingHeader({ soft_cap, windows, rotary, turned }) {
  return { ...(soft_cap && { soft_cap }), ...(windows && { windows }), ...(rotary && { rotary, turned }) };
}

/**
 * @param {import("./pass.js").Pass} pass
 * @returns {ArrayEntry[]}
 */
function thumbnailEntry({ length, model: { config } }) {
  if (length <= THUMBNAIL) return [];
  const shape = [config.n_layers, config.n_heads, THUMBNAIL, THUMBNAIL];
  return [{ ...entry("thumbnails", null, shape), dtype: "uint8", coding: "sqrt" }];
}

/**
 * @param {import("./pass.js").Pass} pass
 * @param {number} layer
 * @returns {ArrayEntry[]}
 */
function entriesOf({ length, model: { config } }, layer) {
  const shape = (/** @type {string} */ name) => [name === "query" ? config.n_heads : config.n_kv_heads, length, config.d_head];
  return [
    { ...entry("probs", layer, [config.n_heads, length, length]), dtype: "uint8", coding: "sqrt" },
    ...VECTORS.map((name) => entry(name, layer, shape(name))),
  ];
}

/**
 * @param {ArrayEntry["quantity"]} quantity
 * @param {number | null} layer
 * @param {number[]} shape
 * @returns {ArrayEntry}
 */
function entry(quantity, layer, shape) {
  const block = layer === null ? quantity : `${quantity}-${layer}`;
  return { block, quantity, layer, head: null, shape, dtype: "float32", coding: "plain", packing: "none", triangle: false };
}

/**
 * The bytes of a block, or some of them. They are the caller's own.
 *
 * @param {import("./pass.js").Pass} pass
 * @param {string} name
 * @param {number} [from]
 * @param {number} [to]
 * @returns {Uint8Array}
 */
export function bytesOf(pass, name, from = 0, to = undefined) {
  const [quantity, layer] = name.split("-");
  if (quantity === "thumbnails") return thumbnails(pass).slice(from, to);
  const { values } = pass.read(quantity, Number(layer));
  if (quantity === "probs") return encodeProbs(values).slice(from, to);
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength).slice(from, to);
}

/** Probabilities square-root coded: round(255·sqrt(probs)). @param {Float32Array} probs */
function encodeProbs(probs) {
  return Uint8Array.from(probs, (weight) => Math.round(255 * Math.sqrt(Math.min(Math.max(weight, 0), 1))));
}

/**
 * The largest code of each of 64 x 64 blocks of cells, of all layers and heads.
 *
 * @param {import("./pass.js").Pass} pass
 */
function thumbnails(pass) {
  const { length, layers } = pass;
  const heads = pass.model.config.n_heads;
  const out = new Uint8Array(layers.length * heads * THUMBNAIL * THUMBNAIL);
  const place = Uint16Array.from({ length }, (_, i) => Math.floor(((i + 1) * THUMBNAIL - 1) / length));
  layers.forEach((layer, n) => {
    const codes = encodeProbs(layer.read("probs").values);
    for (let row = 0; row < heads * length; row += 1) {
      const head = Math.floor(row / length);
      const to = ((n * heads + head) * THUMBNAIL + place[row % length]) * THUMBNAIL;
      for (let key = 0; key < length; key += 1) {
        const at = to + place[key];
        out[at] = Math.max(out[at], codes[row * length + key]);
      }
    }
  });
  return out;
}
