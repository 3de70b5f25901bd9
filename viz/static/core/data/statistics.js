/**
 * What can be said of a head in one number, measured from its weights.
 *
 * previous, next and delimiter count the rows that `minibert.analysis.head_scores` counts.
 *
 * @typedef {object} Statistic
 * @property {string} id
 * @property {string} label
 * @property {string} says
 * @property {"share" | "nats" | "tokens"} unit
 *
 * @typedef {object} About  what the tokens of an example say about its cells
 * @property {number} nQueries
 * @property {number} nKeys
 * @property {boolean} causal
 * @property {[number, number] | null} [window]  keys before and after its own position that a query sees; null: all
 * @property {boolean} square  both sides are the same tokens
 * @property {Int32Array} queryWord  equal numbers: equal tokens
 * @property {Int32Array} keyWord
 * @property {Uint8Array} plain  1 where a token that looks is not a special one
 * @property {Uint8Array} delimiter  1 where a token that is looked at is one
 * @property {Uint8Array} parted  1 where a token that looks is none, and may look at one
 *
 * @import { Example, Layer, Thumbnails } from "./example.js"
 */

import { seenOf } from "./softmax.js";

/** @type {Statistic[]} */
export const STATISTICS = [
  { id: "previous", label: "previous token", says: "mean weight on the token before, special tokens left out", unit: "share" },
  { id: "next", label: "next token", says: "mean weight on the token after, special tokens left out", unit: "share" },
  { id: "same", label: "same token", says: "mean weight on the token itself and on equal ones elsewhere", unit: "share" },
  { id: "first", label: "first token", says: "mean weight on the first token, from all others", unit: "share" },
  { id: "delimiter", label: "delimiter", says: "mean weight on [SEP] or its like, from all other tokens", unit: "share" },
  { id: "broad", label: "broad", says: "entropy as a share of the largest possible, the mean over tokens", unit: "share" },
  { id: "largest", label: "largest weight", says: "each token's largest weight, the mean over tokens", unit: "share" },
  { id: "entropy", label: "entropy", says: "mean over tokens, in nats", unit: "nats" },
  { id: "distance", label: "distance", says: "how far tokens look, weighted, the mean over tokens", unit: "tokens" },
];

/** Special tokens that part nothing. */
const OTHER_SPECIAL = /mask|unk|pad|cls|bos|^<s>$/i;

/** @param {Example} example @returns {About} */
export function aboutTokens({ tokens, keyTokens, causal }) {
  /** @type {Map<string, number>} */
  const words = new Map();
  const numbered = (/** @type {string[]} */ text) =>
    Int32Array.from(text, (word) => {
      const number = words.get(word) ?? words.size;
      words.set(word, number);
      return number;
    });
  const square = tokens === keyTokens;
  const delimiter = Uint8Array.from(keyTokens.text, (text, i) =>
    Number(i > 0 && keyTokens.special[i] && !OTHER_SPECIAL.test(text)),
  );
  const firstOne = delimiter.indexOf(1);
  const parted = Uint8Array.from(tokens.text, (_, i) =>
    Number(firstOne >= 0 && !(square && delimiter[i]) && (!causal || i > firstOne)),
  );
  return {
    nQueries: tokens.text.length,
    nKeys: keyTokens.text.length,
    causal,
    square,
    queryWord: numbered(tokens.text),
    keyWord: numbered(keyTokens.text),
    plain: Uint8Array.from(tokens.special, (special) => Number(!special)),
    delimiter,
    parted,
  };
}

/** A mean that is NaN of nothing. */
class Mean {
  constructor() {
    this.sum = 0;
    this.count = 0;
  }

  /** @param {number} value */
  add(value) {
    this.sum += value;
    this.count += 1;
  }

  get value() {
    return this.sum / this.count;
  }
}

/**
 * The statistics of a head, in the order of STATISTICS; NaN where one says nothing.
 *
 * @param {Float32Array} weights  (query, key)
 * @param {About} about
 * @returns {number[]}
 */
export function measureHead(weights, about) {
  const { nQueries, nKeys, causal, window, square, plain, parted } = about;
  const means = Object.fromEntries(STATISTICS.map(({ id }) => [id, new Mean()]));
  for (let query = 0; query < nQueries; query += 1) {
    const from = query * nKeys;
    const row = measureRow(weights, from, query, about);
    const { first, end } = seenOf({ nKeys, window }, causal, query);
    const visible = end - first;
    means.entropy.add(row.entropy);
    means.largest.add(row.largest);
    if (visible > 1) means.broad.add(row.entropy / Math.log(visible));
    if (query > 0 || !square) means.first.add(weights[from]);
    if (parted[query]) means.delimiter.add(row.delimiter);
    if (plain[query]) means.same.add(row.same);
    if (!square) continue;
    means.distance.add(row.distance);
    if (plain[query] && query > 0) means.previous.add(weights[from + query - 1]);
    if (plain[query] && query < nKeys - 1 && !causal) means.next.add(weights[from + query + 1]);
  }
  return STATISTICS.map(({ id }) => means[id].value);
}

/** @param {Float32Array} weights @param {number} from @param {number} query @param {About} about */
function measureRow(weights, from, query, { nKeys, queryWord, keyWord, delimiter }) {
  let [entropy, largest, distance, same, parting] = [0, 0, 0, 0, 0];
  const word = queryWord[query];
  for (let key = 0; key < nKeys; key += 1) {
    const weight = weights[from + key];
    if (weight === 0) continue;
    entropy -= weight * Math.log(weight);
    distance += weight * Math.abs(key - query);
    if (weight > largest) largest = weight;
    if (keyWord[key] === word) same += weight;
    if (delimiter[key]) parting += weight;
  }
  return { entropy, largest, distance, same, delimiter: parting };
}

/** A statistic as it is written. @param {Statistic} statistic @param {number} value */
export function written({ unit }, value) {
  if (Number.isNaN(value)) return "–";
  if (unit === "share") return `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)}\u202f%`;
  return unit === "nats" ? `${value.toFixed(2)}\u202fnats` : value.toFixed(value < 9.95 ? 1 : 0);
}

/**
 * The numbers behind the model view: a small picture of every head at once, and its statistics,
 * measured a slice at a time after the pictures are there. Nothing large is kept.
 */

/** Cells a side of a small picture. */
const SIDE = 64;

/**
 * True where a layer's weights are on the page, or what they are computed from.
 *
 * @param {Example} example
 * @param {number} layer
 */
export function hasLayer(example, layer) {
  const vectors = example.entry("query", layer) && example.entry("key", layer);
  return Boolean(example.entry("probs", layer) || vectors);
}

/** @param {Example} example */
export function hasThumbnails(example) {
  return Boolean(example.entry("thumbnails", null)) || example.layers.every((layer) => hasLayer(example, layer));
}

/**
 * The small pictures; where the page does not bring them, they are made from its layers.
 *
 * @param {Example} example
 * @returns {Promise<Thumbnails>}
 */
export async function thumbnailsOf(example) {
  const brought = await example.thumbnails();
  if (brought) return brought;
  const rows = Math.min(SIDE, example.tokens.text.length);
  const columns = Math.min(SIDE, example.keyTokens.text.length);
  const codes = new Uint8Array(example.layers.length * example.heads.length * rows * columns);
  for (const [place, number] of example.layers.entries()) {
    const layer = await example.layer(number);
    pool(layer, rows, columns, codes.subarray(place * layer.nHeads * rows * columns));
  }
  return { rows, columns, codes };
}

/**
 * The largest code of each block of cells, as `payload.pool` in Python has it.
 *
 * @param {Layer} layer
 * @param {number} rows
 * @param {number} columns
 * @param {Uint8Array} pooled
 */
function pool({ codes, nHeads, nQueries, nKeys }, rows, columns, pooled) {
  const row = Int32Array.from({ length: nQueries }, (_, i) => blockOf(i, nQueries, rows));
  const column = Int32Array.from({ length: nKeys }, (_, i) => blockOf(i, nKeys, columns));
  let place = 0;
  for (let head = 0; head < nHeads; head += 1) {
    for (let query = 0; query < nQueries; query += 1) {
      const to = (head * rows + row[query]) * columns;
      for (let key = 0; key < nKeys; key += 1, place += 1) {
        const block = to + column[key];
        if (codes[place] > pooled[block]) pooled[block] = codes[place];
      }
    }
  }
}

/**
 * The block that a cell belongs to; block b begins at floor(b * length / blocks).
 *
 * @param {number} i
 * @param {number} length
 * @param {number} blocks
 */
function blockOf(i, length, blocks) {
  return Math.ceil(((i + 1) * blocks) / length) - 1;
}
