/**
 * Text from outside as it is shown: whatever it holds, every character of it can be seen.
 *
 * @import { Tokens } from "../data/data.js"
 */

/** @type {Record<string, string>} */
const NAMED = { "\n": "↵", "\t": "⇥", "\r": "␍", "\u007f": "␡" };
const JOINERS = "\u200c\u200d";

/**
 * A character without a picture of its own, with one: NUL as ␀, a direction mark as ⟨U+202E⟩.
 *
 * @param {string} character
 * @param {number} index
 */
function picture(character, index) {
  if (index > 0 && JOINERS.includes(character)) return character;
  const code = character.codePointAt(0) ?? 0;
  if (character in NAMED) return NAMED[character];
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** @param {string} text @param {number} [limit]  characters shown; the rest is an ellipsis */
export function visible(text, limit = 80) {
  if (text === "") return "∅";
  const cut = text.length > limit ? text.slice(0, limit) : text;
  const shown = cut.replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, picture);
  return cut === text ? shown : `${shown}…`;
}

/** A running text: line breaks and other blanks become spaces. @param {string} text */
export function running(text) {
  return visible(text.replace(/\s+/gu, " ").trim(), 2000);
}

/**
 * A token in words: its quiet mark ("##" before a piece, "·" for a space) and its text.
 *
 * @param {Tokens} tokens
 * @param {number} index
 * @param {number} [limit]
 * @returns {{mark: string, text: string}}
 */
export function tokenText(tokens, index, limit = 80) {
  const text = tokens.text[index];
  if (tokens.piece[index]) return { mark: "##", text: visible(text, limit) };
  const spaces = text.length - text.replace(/^ +/, "").length;
  const mark = "·".repeat(Math.min(spaces, 8));
  return { mark, text: spaces > 0 && spaces === text.length ? "" : visible(text.slice(spaces), limit) };
}

/** A token in running words, without its mark. @param {Tokens} tokens @param {number} index */
export function tokenName(tokens, index) {
  const { mark, text } = tokenText(tokens, index, 40);
  return text || mark;
}

/** A weight in percent, with a digit after the point where one matters. @param {number} weight */
export function percent(weight) {
  const value = weight * 100;
  return `${value < 99.95 ? value.toFixed(1) : "100"}\u202f%`;
}
