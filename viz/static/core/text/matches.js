/**
 * Where a text is found in the tokens: within one, or across several as they stand in the text.
 *
 * @typedef {object} Matches
 * @property {number[]} starts  the first token of each match, in reading order
 * @property {Set<number>} tokens  all tokens of all matches
 */

import { visible } from "./text.js";
import { gapsBefore } from "./words.js";

/**
 * @typedef {{line: string, ends: number[]}} Line  of each token, where it ends in the line
 *
 * @type {WeakMap<import("../data/data.js").Tokens, Line>}
 */
const LINES = new WeakMap();

/**
 * @param {import("../data/data.js").Tokens} tokens
 * @param {string} find
 * @returns {Matches}
 */
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

/**
 * The running text, with what stands before a token as a part of it.
 *
 * @param {import("../data/data.js").Tokens} tokens
 * @returns {Line}
 */
function lineOf(tokens) {
  const gaps = gapsBefore(tokens);
  /** @type {number[]} */
  const ends = [];
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
 * @param {import("../data/data.js").Tokens} tokens
 * @param {string} find
 * @param {number} [first]  the token of the first item
 */
export function markFound(items, tokens, find, first = 0) {
  const found = matchesOf(tokens, find).tokens;
  items.forEach((item, i) => item.classList.toggle("found", found.has(first + i)));
}
