/**
 * Text to tokens and back, as text/tokenizer.py: the splitting is done by the library
 * `@huggingface/tokenizers`, set up by a model's own tokenizer.json.
 *
 * @typedef {object} Vocabulary  what the engine is given of a model's tokenizer
 * @property {any} tokenizer  the content of its tokenizer.json
 * @property {number[]} structural  ids that mark structure and stand for no text
 * @property {number | null} mask
 * @property {number} size  the largest id plus one
 *
 * @typedef {object} Tokens  one sentence
 * @property {number[]} ids
 * @property {number[]} segments  0 for the first text and 1 for the second, where the model tells them apart
 * @property {string[]} raw  the vocabulary's own strings
 * @property {string[]} strings  the same as a person reads them
 * @property {number[]} special  1 for tokens that mark structure
 * @property {boolean} cut  the tokens end before the text does
 * @property {string[]} texts
 *
 * @typedef {{text: 0 | 1, segment: number} | {ids: number[], segment: number}} Piece  of a template
 */

import { BertNormalizer, BertPreTokenizer, Tokenizer as Backend } from "@huggingface/tokenizers";

import { bertNormalized } from "./bert_normalizer.js";
import { BERT_PARTS } from "./bert_splitting.js";

export class Tokenizer {
  /** @param {Vocabulary} vocabulary */
  constructor({ tokenizer, structural, mask, size }) {
    this.backend = new Backend(tokenizer, {});
    mend(this.backend.normalizer);
    mend(this.backend.pre_tokenizer);
    this.single = templateOf(tokenizer.post_processor, "single");
    this.pair = templateOf(tokenizer.post_processor, "pair");
    this.structural = new Set(structural);
    this.mask = mask;
    this.size = size;
    this.readable = reader(tokenizer);
  }

  /** The vocabulary's own string; the id written out where there is no such entry. @param {number} id */
  raw(id) {
    return this.backend.id_to_token(id) ?? String(id);
  }

  /** The string as a person reads it. @param {number} id */
  string(id) {
    return this.readable(this.raw(id));
  }

  /** The ids of a text, without special tokens. @param {string} text */
  encode(text) {
    return this.backend.encode(text, { add_special_tokens: false }).ids;
  }

  /** The text that ids stand for. @param {number[]} ids */
  decode(ids) {
    return this.backend.decode(ids, { clean_up_tokenization_spaces: false });
  }

  /**
   * Tokens of one text or two, special tokens added as the vocabulary's own template says. More of
   * them than `limit` are cut from the right, of two texts from the longer one first.
   *
   * @param {string[]} texts
   * @param {number} limit
   * @returns {Tokens}
   */
  tokens(texts, limit) {
    const parts = texts.map((text, i) => this.encoded(text, texts.length === 1 ? "the text" : `text ${i + 1}`));
    const template = texts.length === 1 ? this.single : this.pair;
    const special = template.reduce((sum, piece) => sum + ("ids" in piece ? piece.ids.length : 0), 0);
    const kept = keptLengths(parts.map(({ length }) => length), limit - special);
    const ids = [];
    const segments = [];
    for (const piece of template) {
      const own = "ids" in piece ? piece.ids : parts[piece.text].slice(0, kept[piece.text]);
      ids.push(...own);
      segments.push(...own.map(() => piece.segment));
    }
    return {
      ids,
      segments,
      raw: ids.map((id) => this.raw(id)),
      strings: ids.map((id) => this.string(id)),
      special: ids.map((id) => Number(this.structural.has(id))),
      cut: parts.some((part, i) => kept[i] < part.length),
      texts,
    };
  }

  /**
   * @param {string} text
   * @param {string} place
   */
  encoded(text, place) {
    if (/\p{Surrogate}/u.test(text)) throw new Error(`${place} has half a character (an unpaired surrogate)`);
    const ids = this.encode(text);
    if (!ids.length) throw new Error(`${place} gives no token: write at least one word`);
    return ids;
  }
}

/**
 * Puts our own in the place of the library's normalizer and splitting for BERT.
 *
 * @param {any} step  of the library, or several as one
 */
function mend(step) {
  if (step instanceof BertNormalizer) {
    const settings = /** @type {any} */ (step).config;
    step.normalize = (text) => bertNormalized(text, settings);
  }
  if (step instanceof BertPreTokenizer) /** @type {any} */ (step).pattern = BERT_PARTS;
  for (const one of step?.normalizers ?? step?.tokenizers ?? []) mend(one);
}

/**
 * How many tokens of each text stay where `room` of them do. As in transformers' "longest_first" the
 * longer text gives until both are equally long.
 *
 * @param {number[]} lengths
 * @param {number} room
 */
function keptLengths(lengths, room) {
  const total = lengths.reduce((a, b) => a + b, 0);
  if (total <= room) return lengths;
  if (lengths.length === 1) return [room];
  const short = Math.min(...lengths, Math.floor(room / 2));
  return lengths[0] <= lengths[1] ? [short, room - short] : [room - short, short];
}

/**
 * What stands around the texts, from a tokenizer's post-processor.
 *
 * @param {any} processor
 * @param {"single" | "pair"} kind
 * @returns {Piece[]}
 */
function templateOf(processor, kind) {
  /** @type {Piece[]} */
  const plain = [{ text: 0, segment: 0 }, .../** @type {Piece[]} */ (kind === "pair" ? [{ text: 1, segment: 1 }] : [])];
  if (processor?.type !== "TemplateProcessing") return plain;
  return processor[kind].map((/** @type {any} */ piece) => {
    if (piece.Sequence) return { text: piece.Sequence.id === "A" ? 0 : 1, segment: piece.Sequence.type_id };
    const { id, type_id: segment } = piece.SpecialToken;
    return { ids: processor.special_tokens[id].ids, segment };
  });
}

/**
 * A function from the vocabulary's own strings to what a person reads.
 *
 * @param {any} tokenizer
 * @returns {(raw: string) => string}
 */
function reader(tokenizer) {
  const literal = new Set(tokenizer.added_tokens.map((/** @type {{content: string}} */ { content }) => content));
  const prefix = tokenizer.model.continuing_subword_prefix ?? "";
  const bytes = JSON.stringify([tokenizer.decoder, tokenizer.pre_tokenizer]).includes('"ByteLevel"') ? byteAlphabet() : null;
  return (raw) => {
    if (literal.has(raw)) return raw;
    if (bytes) return readBytes(raw, bytes);
    return prefix && raw.startsWith(prefix) ? raw.slice(prefix.length) || raw : raw;
  };
}

/**
 * @param {string} raw
 * @param {Map<string, number>} alphabet
 */
function readBytes(raw, alphabet) {
  const bytes = [...raw].map((character) => alphabet.get(character));
  if (bytes.includes(undefined)) return raw;
  return fromUtf8(Uint8Array.from(/** @type {number[]} */ (bytes)));
}

/**
 * The text of bytes; those that are no character are written as "\xf0".
 *
 * @param {Uint8Array} bytes
 */
function fromUtf8(bytes) {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  let from = 0;
  while (from < bytes.length) {
    const found = [1, 2, 3, 4].map((length) => decoded(strict, bytes.subarray(from, from + length))).findIndex((one) => one !== null);
    if (found < 0) {
      text += `\\x${bytes[from].toString(16).padStart(2, "0")}`;
      from += 1;
    } else {
      text += decoded(strict, bytes.subarray(from, from + found + 1));
      from += found + 1;
    }
  }
  return text;
}

/**
 * @param {TextDecoder} decoder
 * @param {Uint8Array} bytes
 */
function decoded(decoder, bytes) {
  try {
    return decoder.decode(bytes);
  } catch {
    return null;
  }
}

/**
 * The byte each character of a byte-level vocabulary stands for (GPT-2, `bytes_to_unicode`): printable
 * Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 up.
 */
function byteAlphabet() {
  const alphabet = new Map();
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const printable = (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
    alphabet.set(String.fromCharCode(printable ? byte : next++), byte);
  }
  return alphabet;
}
