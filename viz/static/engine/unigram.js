/**
 * The Unigram model of SentencePiece and the normalizer in front of it, as the library in Rust has both.
 *
 * Kudo 2018, "Subword Regularization", equation 3; a normalizer is a double array trie of UTF-8 (Aoe 1989).
 */

/** What a character that is not in the vocabulary costs beyond the least likely piece, in nats. */
const UNKNOWN = 10;
/** Longer groups of characters are looked up one character at a time, in bytes. */
const LONGEST_GROUP = 5;
const utf8 = new TextEncoder();

/**
 * The likeliest pieces of a word; neighbours that are not in the vocabulary are one piece.
 *
 * @param {{vocab: [string, number][], byte_fallback?: boolean}} model  pieces and their log probabilities
 * @returns {(word: string) => string[]}
 */
export function unigram({ vocab, byte_fallback: bytes }) {
  const scores = new Map(vocab);
  const longest = vocab.reduce((most, [piece]) => Math.max(most, piece.length), 1);
  const unknown = vocab.reduce((least, [, score]) => Math.min(least, score), Infinity) - UNKNOWN;
  const known = (/** @type {string} */ piece) => {
    const named = scores.has(piece) || !bytes ? [piece] : [...utf8.encode(piece)].map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
    return named.every((one) => scores.has(one)) ? named : [piece];
  };
  return (word) => {
    /** @type {{score: number, start: number, known: boolean}[]} the best way to each end */
    const best = [{ score: 0, start: 0, known: true }];
    for (let start = 0, width = 0; start < word.length; start += width) {
      width = /** @type {number} */ (word.codePointAt(start)) > 0xffff ? 2 : 1;
      const offer = (/** @type {number} */ size, /** @type {number} */ score, known = true) => {
        const total = best[start].score + score;
        if (!(total <= best[start + size]?.score)) best[start + size] = { score: total, start, known };
      };
      for (let size = width; size <= Math.min(longest, word.length - start); size += 1) {
        const score = scores.get(word.slice(start, start + size));
        if (score !== undefined) offer(size, score);
      }
      if (!scores.has(word.slice(start, start + width))) offer(width, unknown, false);
    }
    const pieces = [];
    for (let end = word.length; end > 0;) {
      let { start } = best[end];
      while (!best[end].known && start > 0 && !best[start].known) ({ start } = best[start]);
      pieces.push(word.slice(start, end));
      end = start;
    }
    return pieces.reverse().flatMap(known);
  };
}

/**
 * What a precompiled table of SentencePiece writes for a text.
 *
 * @param {string} charsmap  base64: the bytes of a trie, its 32-bit units, and texts that end with a zero
 * @returns {(text: string) => string}
 */
export function precompiled(charsmap) {
  const whole = /^[A-Za-z0-9+/]{8,}={0,2}$/.test(charsmap) && charsmap.length % 4 === 0;
  const bytes = Uint8Array.from(whole ? atob(charsmap) : "", (one) => one.charCodeAt(0));
  const size = whole ? new DataView(bytes.buffer).getUint32(0, true) : 0;
  if (!size || size % 4 || 4 + size > bytes.length) throw new Error("tokenizer.json: the precompiled normalizer is damaged");
  const units = new Uint32Array(bytes.buffer.slice(4, 4 + size));
  const texts = bytes.subarray(4 + size);
  const groups = new Intl.Segmenter();
  const written = (/** @type {string} */ characters) => {
    const offset = (/** @type {number} */ unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let place = offset(units[0]);
    for (const byte of utf8.encode(characters)) {
      const unit = units[(place ^= byte)];
      if (!byte || (unit & 0x800000ff) !== byte) break;
      place ^= offset(unit);
      if (!(unit & 0x100)) continue;
      const start = units[place] & 0x7fffffff;
      return new TextDecoder().decode(texts.subarray(start, texts.indexOf(0, start)));
    }
    return null;
  };
  return (text) =>
    [...groups.segment(text)].map(({ segment }) => {
      const whole = utf8.encode(segment).length <= LONGEST_GROUP ? written(segment) : null;
      return whole ?? [...segment].map((one) => written(one) ?? one).join("");
    }).join("");
}
