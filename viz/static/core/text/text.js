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

const CLOSING = /^[.,;:!?%)\]}»”’]+$/u;
const OPENING = /^[([{«“]+$/u;

/**
 * What stands before each token: nothing, a space, a line break, or a place where a line may end.
 *
 * @param {Tokens} tokens
 * @returns {string[]}
 */
export function gapsBefore(tokens) {
  const { text, special, piece } = tokens;
  // Such vocabularies have the space in front of a word as a part of it.
  const spaced = text.some((token, i) => !special[i] && token.startsWith(" "));
  return text.map((token, i) => {
    if (i === 0) return "";
    const before = text[i - 1];
    if (before.endsWith("\n")) return "\n";
    if (special[i] || special[i - 1]) return " ";
    if (spaced && token.startsWith(" ") && token.trim()) return " ";
    if (spaced) return before.trim() ? "" : "\u200b";
    return piece[i] || CLOSING.test(token) || OPENING.test(before) ? "" : " ";
  });
}

/**
 * Where a text is found in the tokens: within one, or across several as they stand in the text.
 *
 * @typedef {object} Matches
 * @property {number[]} starts  the first token of each match, in reading order
 * @property {Set<number>} tokens  all tokens of all matches
 */

/**
 * @typedef {{line: string, ends: number[]}} Line  of each token, where it ends in the line
 *
 * @type {WeakMap<Tokens, Line>}
 */
const LINES = new WeakMap();

/** @param {Tokens} tokens @param {string} find @returns {Matches} */
export function matchesOf(tokens, find) {
  const wanted = folded(find).trim();
  /** @type {Matches} */
  const found = { starts: [], tokens: new Set() };
  if (!wanted) return found;
  const known = LINES.get(tokens) ?? lineOf(tokens);
  LINES.set(tokens, known);
  let token = 0;
  for (let at = known.line.indexOf(wanted); at >= 0; at = known.line.indexOf(wanted, at + 1)) {
    while (known.ends[token] <= at) token += 1;
    if (found.starts[found.starts.length - 1] !== token) found.starts.push(token);
    for (let i = token; i === token || known.ends[i - 1] < at + wanted.length; i += 1) found.tokens.add(i);
  }
  return found;
}

/** The running text, with what stands before a token as a part of it. @param {Tokens} tokens @returns {Line} */
function lineOf(tokens) {
  const gaps = gapsBefore(tokens);
  const ends = /** @type {number[]} */ ([]);
  let line = "";
  tokens.text.forEach((text, i) => {
    // A space between two tokens belongs to the first: a match begins with a letter.
    line += gaps[i] ? " " : "";
    if (i > 0) ends[i - 1] = line.length;
    line += text.trim() && folded(visible(text.trim(), Infinity));
    ends.push(line.length);
  });
  return { line, ends };
}

/** @param {string} text */
function folded(text) {
  return text.toLowerCase().replace(/\s+/gu, " ");
}

/**
 * Marks the tokens that the search has found.
 *
 * @param {HTMLElement[]} items  one a token
 * @param {Tokens} tokens
 * @param {string} find
 * @param {number} [first]  the token of the first item
 */
export function markFound(items, tokens, find, first = 0) {
  const found = matchesOf(tokens, find).tokens;
  items.forEach((item, i) => item.classList.toggle("found", found.has(first + i)));
}
