/**
 * What a page was given: a header in JSON, and blocks of packed numbers that it names.
 *
 * @typedef {object} ArrayEntry
 * @property {string} block  the name of its bytes
 * @property {"probs" | "query" | "key" | "value" | "query rest" | "key rest" | "thumbnails" | "why" | "why features" | "why read" | "why vectors"} quantity
 * @property {number | null} layer  null: of all layers on the page
 * @property {number | null} head  the head's number in the model; null: of all heads on the page
 * @property {number[]} shape  probs (head, query, key); vectors (head, position, d_head) or, of one
 *   head, (position, d_head); thumbnails (layer, head, query, key)
 * @property {"uint8" | "int8" | "uint16" | "float16" | "float32"} dtype  bytes are little-endian
 * @property {"sqrt" | "plain" | "steps" | "1 bits" | "2 bits" | "4 bits" | "8 bits"} coding  sqrt: 255 times the root of the weight;
 *   steps, and bits of rests, as coded.js has them
 * @property {"deflate" | "none"} packing
 * @property {boolean} triangle  only the cells key <= query are there; the others are zero
 *
 * @typedef {object} Tokens
 * @property {string[]} text
 * @property {(string | null)[]} raw  the vocabulary's own string, null where it is the text
 * @property {number[]} special
 * @property {number[]} segment  0 first text, 1 second
 * @property {number[]} piece  1 where a token continues the one before it
 *
 * @typedef {object} Lens  what each layer would predict, the most probable first
 * @property {string[]} points  names of the places read, in the order of the data
 * @property {string[][][]} strings  (point, position, place): predicted tokens
 * @property {number[][][]} probs  (point, position, place)
 *
 * @typedef {object} ExampleHeader  one text in one model
 * @property {string} name  what tells it from the others: "", or "before", "Encoder"
 * @property {string} model
 * @property {boolean} cut  the tokens end before the text does
 * @property {{n_layers: number, n_heads: number, n_kv_heads?: number, d_head: number | null}} sizes  of the model; n_kv_heads
 *   where heads share keys and values: then key and value have so many heads
 * @property {number[]} layers  numbers of the layers on this page
 * @property {number[]} heads  numbers of the heads on this page
 * @property {string[]} texts
 * @property {Tokens} tokens  those that look
 * @property {Tokens | null} key_tokens  those that are looked at; null: the same
 * @property {boolean} causal  no token looks ahead
 * @property {number[] | null} scale  of each layer on the page: scores = scale * query . key
 * @property {number} [soft_cap]  scores are squeezed into -cap to cap before the mask
 * @property {([number, number] | null)[]} [windows]  of each layer on the page: how many keys before and after its
 *   own position a query sees; null: all
 * @property {Rotary[]} [rotary]  how query and key are turned by their positions
 * @property {number[]} [turned]  of each layer on the page: which of `rotary`
 * @property {boolean} edited  probs are not the softmax of these scores, as an edit changed them or as `apart` says
 * @property {string} [apart]  a sentence: what the model's weights have beside query and key
 * @property {boolean} [normalised]  false: the weights of a token do not always add up to 1
 * @property {Lens | {block: string} | null} lens  itself, or the block that holds it as JSON
 * @property {{components: string[], least: number, heads?: string[], features?: [string, number]}} [why]  names of what wrote
 *   parts of scores; the least weight whose score's parts are here; the place of features, where it is split by them too
 * @property {string[]} notes  what was left out and why, for a person to read
 * @property {ArrayEntry[]} arrays
 *
 * @typedef {object} Header
 * @property {number} format
 * @property {string | null} title
 * @property {string} view  the view to begin with
 * @property {string} [start]  what else to begin with, as an address asks for it
 * @property {ExampleHeader[]} examples
 *
 * @typedef {object} Blocks  where the bytes come from
 * @property {(name: string, from?: number, to?: number) => Promise<Uint8Array>} bytes  those of a block, or
 *   some of them; they are the caller's own and fill their buffer
 *
 * @import { Rotary } from "./rotation.js"
 */

import { fromHalf, fromSteps } from "./coded.js";
import { inflate } from "./packed.js";

/**
 * The bytes of an array, inflated; they fill their buffer.
 *
 * @param {ArrayEntry} entry
 * @param {Blocks} blocks
 * @returns {Promise<Uint8Array>}
 */
export async function bytesOf(entry, blocks) {
  const packed = await blocks.bytes(entry.block);
  return entry.packing === "deflate" ? new Uint8Array(await inflate(packed).arrayBuffer()) : packed;
}

/**
 * The numbers of an array, unpacked: codes of weights as they are, others as single precision.
 *
 * @param {ArrayEntry} entry
 * @param {Blocks} blocks
 * @returns {Promise<Uint8Array | Int8Array | Float32Array>}
 */
export async function unpack(entry, blocks) {
  const bytes = await bytesOf(entry, blocks);
  if (entry.coding === "steps") return fromSteps(bytes, entry.shape);
  if (entry.dtype === "uint8") return entry.triangle ? fromTriangle(bytes, entry.shape) : bytes;
  if (entry.dtype === "int8") return new Int8Array(bytes.buffer);
  if (entry.dtype === "float16") return fromHalf(new Uint16Array(bytes.buffer));
  return new Float32Array(bytes.buffer);
}

/**
 * A part of an array of vectors, which are not packed: no more of them is read than is asked for.
 *
 * @param {ArrayEntry} entry  packing none
 * @param {Blocks} blocks
 * @param {number} from  the first number
 * @param {number} length
 * @returns {Promise<Float32Array>}
 */
export async function unpackPart(entry, blocks, from, length) {
  const size = entry.dtype === "float16" ? 2 : 4;
  const { buffer } = await blocks.bytes(entry.block, from * size, (from + length) * size);
  return size === 2 ? fromHalf(new Uint16Array(buffer)) : new Float32Array(buffer);
}

/** @param {Uint8Array} cells @param {number[]} shape  head, query, key */
function fromTriangle(cells, [nHeads, size]) {
  const codes = new Uint8Array(nHeads * size * size);
  let from = 0;
  for (let row = 0; row < nHeads * size; row += 1) {
    const length = (row % size) + 1;
    codes.set(cells.subarray(from, from + length), row * size);
    from += length;
  }
  return codes;
}
