/** Tokens as running text: what stands between them, the lines they form, which way they read. */

import { element } from "../draw/dom.js";
import { tokenName } from "../draw/text.js";

/**
 * @typedef {import("../data/data.js").Tokens} Tokens
 * @typedef {import("../data/attention.js").Side} Side
 * @typedef {{segment: number, from: number, to: number}} Line
 */

const CLOSING = /^[.,;:!?%)\]}»”’]+$/u;
const OPENING = /^[([{«“]+$/u;
const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LETTER = /\p{L}/u;

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
 * The lines that tokens form: each text has its own.
 *
 * @param {Tokens} tokens
 * @param {number} from
 * @param {number} to
 * @returns {Line[]}
 */
export function linesOf({ segment }, from, to) {
  /** @type {Line[]} */
  const lines = [];
  for (let i = from; i < to; i += 1) {
    const last = lines[lines.length - 1];
    if (last && last.segment === segment[i]) last.to = i + 1;
    else lines.push({ segment: segment[i], from: i, to: i + 1 });
  }
  return lines;
}

/**
 * The direction that most words of a line have.
 *
 * @param {Tokens} tokens
 * @param {Line} line
 */
function directionOf({ text, special }, { from, to }) {
  let balance = 0;
  for (let i = from; i < to; i += 1) {
    if (special[i] || !LETTER.test(text[i])) continue;
    balance += RIGHT_TO_LEFT.test(text[i]) ? 1 : -1;
  }
  return balance > 0 ? "rtl" : "ltr";
}

/**
 * Lines of tokens, each an element of its own.
 *
 * @param {Tokens} tokens
 * @param {Side | ""} side  what a token of this text stands for; "" where it depends
 * @param {number} from
 * @param {number} to
 * @returns {{lines: HTMLElement[], items: HTMLElement[]}}  items from token `from` on
 */
export function runningText(tokens, side, from, to) {
  const gaps = gapsBefore(tokens);
  const several = tokens.segment.includes(1) && tokens.segment.includes(0);
  /** @type {HTMLElement[]} */
  const items = [];
  const lines = linesOf(tokens, from, to).map((line) => {
    const made = element("p", { class: "shaded-line", role: "group", dir: directionOf(tokens, line) });
    if (several) made.append(element("span", { class: "shaded-badge", "aria-hidden": "true" }, ["AB"[line.segment] ?? ""]));
    for (let i = line.from; i < line.to; i += 1) {
      const item = wordOf(tokens, side, i);
      items.push(item);
      made.append(i > line.from ? gaps[i] : "", item);
    }
    return made;
  });
  return { lines, items };
}

/**
 * @param {Tokens} tokens
 * @param {Side | ""} side
 * @param {number} index
 */
function wordOf(tokens, side, index) {
  const names = tokens.special[index] ? "shaded-token special" : "shaded-token";
  const item = element("bdi", { class: names, role: "option", "aria-selected": "false", tabindex: "-1" });
  item.textContent = tokenName(tokens, index);
  item.dataset.index = String(index);
  item.dataset.side = side;
  return item;
}
