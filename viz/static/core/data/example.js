/**
 * One text in one model: its tokens, and its numbers, each unpacked when it is first looked at.
 *
 * @typedef {object} Layer  attention of one layer
 * @property {number} number
 * @property {number} nHeads
 * @property {number} nQueries
 * @property {number} nKeys
 * @property {number} size  queries, where both sides are the same tokens
 * @property {Uint8Array} codes  (head, query, key), 255 times the root of the weight
 *
 * @typedef {object} Vectors  of one head
 * @property {Float32Array} query  (position, width)
 * @property {Float32Array} key
 * @property {Float32Array | null} value
 * @property {number} nQueries
 * @property {number} nKeys
 * @property {number} width  d_head
 * @property {number} scale  scores = scale * query . key
 * @property {number | null} [softCap]  scores are squeezed into -cap to cap; null: they are not
 * @property {[number, number] | null} [window]  keys before and after its own position that a query sees; null: all
 * @property {Rotary | null} [rotary]  how query and key were turned; null: they were not
 * @property {boolean} exact  single precision, as the model had them; else rounded
 * @property {number | null} within  the most that a number is from the model's; null: half precision or better
 *
 * @typedef {object} Thumbnails  the largest weight of each block of cells
 * @property {number} rows
 * @property {number} columns
 * @property {Uint8Array} codes  (layer, head, row, column) by place on the page
 *
 * @import { ArrayEntry, Blocks, ExampleHeader, Lens } from "./data.js"
 * @import { Rotary } from "./rotation.js"
 * @import { Source } from "./source.js"
 */

import { codesOf } from "./attention.js";
import { headFromSteps, refined } from "./coded.js";
import { bytesOf, unpack, unpackPart } from "./data.js";
import { keyHeadOf } from "./sharing.js";
import { attend } from "./softmax.js";

/**
 * What is made or asked for once, by its name; what failed may be asked for again.
 *
 * @template Made
 * @param {Map<string, Promise<any>>} known
 * @param {string} name
 * @param {() => Promise<Made>} make
 * @returns {Promise<Made>}
 */
export function once(known, name, make) {
  const made = known.get(name) ?? make();
  known.set(name, made);
  made.catch(() => known.delete(name));
  return made;
}

/** Unpacked blocks of codes that are kept: query, key and value of two layers. */
const KEPT = 6;
/** Layers computed from query and key that are kept; one of 512 tokens and 12 heads has 3 MB. */
const COMPUTED = 4;

/** @typedef {{numbers: Float32Array, within: number | null}} Part  of one head */

export class Example {
  /** @param {ExampleHeader} header @param {Blocks} blocks @param {number} index */
  constructor(header, blocks, index) {
    this.header = header;
    this.blocks = blocks;
    this.index = index;
    this.tokens = header.tokens;
    this.keyTokens = header.key_tokens ?? header.tokens;
    this.layers = header.layers;
    this.heads = header.heads;
    /** The key-value heads of those, each once. */
    this.keyHeads = [...new Set(header.heads.map((head) => this.keyHead(head)))];
    this.normalised = !header.edited && header.normalised !== false;
    this.causal = header.causal && this.tokens.text.length > 1;
    /** @type {Map<string, Promise<any>>} */
    this.made = new Map();
    /** Where a page asks a model. @type {Source | null} */
    this.source = null;
    /** @type {Map<string, Promise<Uint8Array>>} */
    this.unpacked = new Map();
    /** Layers, each with the places of the heads that are there. @type {Map<number, {layer: Layer, ready: Set<number>}>} */
    this.computed = new Map();
  }

  /** @param {string} quantity @param {number | null} layer @param {number | null} [head] */
  entry(quantity, layer, head = null) {
    return this.header.arrays.find(
      (entry) => entry.quantity === quantity && entry.layer === layer && entry.head === head,
    );
  }

  /** The key-value head that a head reads: its own, unless several share one. @param {number} head */
  keyHead(head) {
    return keyHeadOf(this.header.sizes, head);
  }

  /** What of a layer makes weights of scores beside their scale. @param {number} layer */
  looking(layer) {
    const { soft_cap: softCap = null, windows, rotary, turned } = this.header;
    const place = this.layers.indexOf(layer);
    return { softCap, window: windows?.[place] ?? null, rotary: rotary && turned ? rotary[turned[place]] : null };
  }

  /** True where query and key of some head are on the page. */
  get hasVectors() {
    return this.header.arrays.some(({ quantity }) => quantity === "query");
  }

  /**
   * The attention of a layer. Where a page has query and key only, a head of a long text takes some ten milliseconds:
   * the codes of other heads than those asked for may be 0 then.
   *
   * @param {number} number
   * @param {Iterable<number>} [places]  of heads in the head axis; all by default
   * @returns {Promise<Layer>}
   */
  async layer(number, places = this.heads.keys()) {
    const [nHeads, nQueries, nKeys] = [this.heads.length, this.tokens.text.length, this.keyTokens.text.length];
    const entry = this.entry("probs", number);
    const made = (/** @type {Uint8Array} */ codes) => ({ number, nHeads, nQueries, nKeys, size: nQueries, codes });
    if (entry) return once(this.made, `layer ${number}`, async () => made(/** @type {Uint8Array} */ (await unpack(entry, this.blocks))));
    const begun = this.computed.get(number) ?? { layer: made(new Uint8Array(nHeads * nQueries * nKeys)), ready: new Set() };
    this.computed.delete(number);
    this.computed.set(number, begun);
    for (const oldest of [...this.computed.keys()].slice(0, -COMPUTED)) this.computed.delete(oldest);
    for (const place of places) {
      if (begun.ready.has(place)) continue;
      const vectors = await this.vectors(number, this.heads[place]);
      if (!vectors) throw new RangeError(`layer ${number} has no weights on this page`);
      begun.layer.codes.set(codesOf(attend(vectors, this.causal)), place * nQueries * nKeys);
      begun.ready.add(place);
    }
    return begun.layer;
  }

  /**
   * The weights of one head, (query, key): from query and key where they are on the page.
   *
   * @param {number} layer
   * @param {number} head  its number in the model
   * @returns {Promise<Float32Array>}
   */
  head(layer, head) {
    return once(this.made, `head ${layer} ${head}`, async () => {
      const vectors = this.header.edited ? null : await this.vectors(layer, head);
      if (vectors) return attend(vectors, this.causal);
      if (!this.entry("probs", layer)) throw new RangeError(`layer ${layer} has no weights on this page`);
      const { codes, nQueries, nKeys } = await this.layer(layer);
      const place = this.heads.indexOf(head) * nQueries * nKeys;
      return Float32Array.from(codes.subarray(place, place + nQueries * nKeys), (code) => (code / 255) ** 2);
    });
  }

  /**
   * query, key and value of one head; null where they are not on the page.
   *
   * @param {number} layer
   * @param {number} head  its number in the model
   * @returns {Promise<Vectors | null>}
   */
  vectors(layer, head) {
    return once(this.made, `vectors ${layer} ${head}`, async () => {
      const [query, key, value] = await Promise.all(
        ["query", "key", "value"].map((name) => this.part(name, layer, head)),
      );
      if (!query || !key) return null;
      const [nQueries, nKeys] = [this.tokens.text.length, this.keyTokens.text.length];
      const width = query.numbers.length / nQueries;
      const scale = this.header.scale?.[this.layers.indexOf(layer)] ?? 1 / Math.sqrt(width);
      const exact = this.entry("query", layer, head)?.dtype === "float32";
      const within = query.within === null ? null : Math.max(query.within, key.within ?? 0);
      const numbers = { query: query.numbers, key: key.numbers, value: value && value.numbers };
      return { ...numbers, nQueries, nKeys, width, scale, exact, within, ...this.looking(layer) };
    });
  }

  /** @param {string} name @param {number} layer @param {number} reader  the head that reads it @returns {Promise<Part | null>} */
  async part(name, layer, reader) {
    const [head, held] = name === "query" ? [reader, this.heads] : [this.keyHead(reader), this.keyHeads];
    const own = this.entry(name, layer, head);
    if (own) return { numbers: /** @type {Float32Array} */ (await unpack(own, this.blocks)), within: null };
    const entry = this.entry(name, layer);
    if (!entry) return null;
    const rest = this.entry(`${name} rest`, layer, head);
    if (entry.coding === "steps") {
      const rests = rest && (await bytesOf(rest, this.blocks));
      return headFromSteps(await this.kept(entry), entry.shape, held.indexOf(head), rests, parseInt(rest?.coding ?? "0", 10));
    }
    const [, positions, width] = entry.shape;
    const length = positions * width;
    const numbers = await unpackPart(entry, this.blocks, held.indexOf(head) * length, length);
    return { numbers: rest ? refined(numbers, await unpack(rest, this.blocks)) : numbers, within: null };
  }

  /** The bytes of a block of all heads, which are asked for one after the other. @param {ArrayEntry} entry */
  kept(entry) {
    const bytes = this.unpacked.get(entry.block) ?? bytesOf(entry, this.blocks);
    this.unpacked.delete(entry.block);
    this.unpacked.set(entry.block, bytes);
    for (const oldest of [...this.unpacked.keys()].slice(0, -KEPT)) this.unpacked.delete(oldest);
    return bytes;
  }

  /**
   * What each layer would predict: on the page, or computed by an engine when it is first asked for.
   *
   * @returns {Promise<Lens | null>}
   */
  lens() {
    return once(this.made, "lens", async () => {
      const { lens } = this.header;
      if (!lens || !("block" in lens)) return lens;
      return JSON.parse(new TextDecoder().decode(await this.blocks.bytes(lens.block)));
    });
  }

  /** @returns {Promise<Thumbnails | null>} */
  thumbnails() {
    return once(this.made, "thumbnails", async () => {
      const entry = this.entry("thumbnails", null);
      if (!entry) return null;
      const codes = /** @type {Uint8Array} */ (await unpack(entry, this.blocks));
      return { rows: entry.shape[2], columns: entry.shape[3], codes };
    });
  }
}
