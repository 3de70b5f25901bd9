/**
 * A tokenizer in the page: texts to ids and back, as text/tokenizer.py.
 *
 * The normalizer and the pre-tokenizer of BERT are those of the library in Rust, character by character.
 */

import { Tokenizer as Backend } from "@huggingface/tokenizers";
import { precompiled, unigram } from "./unigram.js";

/**
 * @typedef {object} Settings
 * @property {boolean} clean_text
 * @property {boolean} handle_chinese_chars
 * @property {boolean | null} strip_accents  null: as `lowercase`
 * @property {boolean} lowercase
 */

/** What SentencePiece writes for a space. */
const SPACE = "\u2581";
/** Blocks of Chinese characters; the sixth begins where it does in Rust. */
const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/u;

/** @param {string} text @param {Settings} settings */
export function bertNormalized(text, { clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  let characters = [...text];
  if (clean_text) characters = characters.filter((one) => /[\t\n\r]|[^\0\ufffd\p{Cc}\p{Cf}\p{Co}\p{Cs}]/u.test(one)).map((one) => (/\s/u.test(one) ? " " : one));
  if (handle_chinese_chars) characters = characters.map((one) => (CHINESE.test(one) ? ` ${one} ` : one));
  if (strip_accents ?? lowercase) characters = [...characters.join("").normalize("NFD").replace(/\p{Mn}/gu, "")];
  return lowercase ? lowercased(characters) : characters.join("");
}

/** One at a time: of a whole word it depends on what stands around a character. @param {Iterable<string>} text */
const lowercased = (text) => [...text].map((one) => one.toLowerCase()).join("");

/** Punctuation of Unicode 9 and later, which is not punctuation there. */
const NEWER =
  String.raw`\u{61d}\u{9fd}\u{a76}\u{c77}\u{c84}\u{1b4e}-\u{1b4f}\u{1b7d}-\u{1b7f}\u{2e43}-\u{2e4f}` +
  String.raw`\u{2e52}-\u{2e5d}\u{10d6e}\u{10ead}\u{10ed0}\u{10f55}-\u{10f59}\u{10f86}-\u{10f89}` +
  String.raw`\u{113d4}-\u{113d5}\u{113d7}-\u{113d8}\u{1144b}-\u{1144f}\u{1145a}-\u{1145b}\u{1145d}` +
  String.raw`\u{11660}-\u{1166c}\u{116b9}\u{1183b}\u{11944}-\u{11946}\u{119e2}\u{11a3f}-\u{11a46}` +
  String.raw`\u{11a9a}-\u{11a9c}\u{11a9e}-\u{11aa2}\u{11b00}-\u{11b09}\u{11be1}\u{11c41}-\u{11c45}` +
  String.raw`\u{11c70}-\u{11c71}\u{11ef7}-\u{11ef8}\u{11f43}-\u{11f4f}\u{11fff}\u{12ff1}-\u{12ff2}` +
  String.raw`\u{16d6d}-\u{16d6f}\u{16e97}-\u{16e9a}\u{16fe2}\u{1e5ff}\u{1e95e}-\u{1e95f}`;
/** ASCII symbols count too, and two marks that later became others. */
const PUNCTUATION = String.raw`\p{P}\u0021-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u007E\u166D\u{111C9}`;

/** The parts of a text: words, and marks one by one. */
// Each of them is a character of its own here.
// eslint-disable-next-line no-misleading-character-class
export const BERT_PARTS = new RegExp(String.raw`(?:[^\s${PUNCTUATION}]|[${NEWER}])+|[${PUNCTUATION}]`, "gu");

/**
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

export class Tokenizer {
  /** @param {Vocabulary} vocabulary */
  constructor({ tokenizer, structural, mask, size }) {
    this.backend = backendOf(tokenizer);
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
    const parts = texts.map((text, i) => {
      const [place, found] = [texts.length === 1 ? "the text" : `text ${i + 1}`, this.encode(text)];
      if (/\p{Surrogate}/u.test(text)) throw new Error(`${place} has half a character (an unpaired surrogate)`);
      if (!found.length) throw new Error(`${place} gives no token: write at least one word`);
      return found;
    });
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

}

/** What our own methods do in the place of the library's, by the type of a step. @type {Record<string, (part: any, step: any) => any>} */
const MENDED = {
  BertNormalizer: (part) => ({ normalize: (/** @type {string} */ text) => bertNormalized(text, part) }),
  BertPreTokenizer: () => ({ pattern: BERT_PARTS }),
  Lowercase: () => ({ normalize: lowercased }),
  Metaspace: ({ split }, step) => {
    const marked = step.pre_tokenize_text.bind(step);
    // A word with the mark in front of it.
    return split === false ? {} : { pre_tokenize_text: (/** @type {any} */ ...given) => marked(...given)[0].match(/\u2581[^\u2581]*|[^\u2581]+/gu) ?? [] };
  },
  Precompiled: (part) => ({ normalize: precompiled(part.precompiled_charsmap) }),
  Strip: ({ strip_left: left, strip_right: right }) => ({ normalize: (/** @type {string} */ text) => text.replace(left ? /^\p{White_Space}+/u : "", "").replace(right ? /\p{White_Space}+$/u : "", "") }),
  WhitespaceSplit: () => ({ pre_tokenize_text: (/** @type {string} */ text) => text.match(/\P{White_Space}+/gu) ?? [] }),
};

/** @param {any} step  of the library, or several as one @param {any} part  what tokenizer.json says of it */
function mend(step, part) {
  Object.assign(step ?? {}, MENDED[part?.type]?.(part, step));
  (part?.normalizers ?? part?.pretokenizers ?? []).forEach((/** @type {any} */ one, /** @type {number} */ i) => mend((step.normalizers ?? step.tokenizers)[i], one));
}

/** The library with the steps that it has like the one in Rust, and with our own for the others. @param {any} tokenizer */
function backendOf(tokenizer) {
  const { model } = tokenizer;
  const pieces = model.type === "Unigram" && unigram(model);
  // A model of the library whose vocabulary is the same; what it splits by is put in below.
  const known = pieces && { type: "WordPiece", vocab: Object.fromEntries(idsOf(model)), unk_token: model.vocab[model.unk_id][0] };
  const backend = new Backend({ ...tokenizer, model: known || model }, {});
  if (pieces) /** @type {any} */ (backend).model.encode = (/** @type {string[]} */ words) => words.flatMap(pieces);
  mend(backend.normalizer, tokenizer.normalizer);
  mend(backend.pre_tokenizer, tokenizer.pre_tokenizer);
  return backend;
}

/** The pieces of a model and their ids: Unigram lists them. @param {any} model @returns {[string, number][]} */
export const idsOf = ({ vocab }) => (Array.isArray(vocab) ? vocab.map(([piece], id) => [piece, id]) : Object.entries(vocab));

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
  const around = (/** @type {[string, number]} */ mark, segment = 0) => ({ ids: [mark[1]], segment });
  if (processor?.type === "Sequence") return processor.processors.map((/** @type {any} */ one) => templateOf(one, kind)).find((/** @type {Piece[]} */ one) => one.length > plain.length) ?? plain;
  if (processor?.type === "RobertaProcessing" || processor?.type === "BertProcessing") {
    const { cls, sep, type } = processor;
    const [between, segment] = type === "BertProcessing" ? [[], 1] : [[around(sep)], 0];
    return [around(cls), plain[0], around(sep), ...(kind === "pair" ? [...between, { text: /** @type {1} */ (1), segment }, around(sep, segment)] : [])];
  }
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
  const parts = JSON.stringify([tokenizer.decoder, tokenizer.pre_tokenizer]);
  const alphabet = parts.includes('"ByteLevel"') ? byteAlphabet() : null;
  const spaced = parts.includes(SPACE);
  return (raw) => {
    if (literal.has(raw)) return raw;
    if (alphabet) {
      const bytes = [...raw].map((character) => alphabet.get(character));
      return bytes.includes(undefined) ? raw : fromUtf8(Uint8Array.from(/** @type {number[]} */ (bytes)));
    }
    if (spaced) return raw.replaceAll(SPACE, " ");
    return prefix && raw.startsWith(prefix) ? raw.slice(prefix.length) || raw : raw;
  };
}

/** The text of bytes; those that are not characters are written as "\xf0". @param {Uint8Array} bytes */
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

/** @param {TextDecoder} decoder @param {Uint8Array} bytes */
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
