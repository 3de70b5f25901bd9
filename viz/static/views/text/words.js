/** Tokens as running text: what stands between them, the lines they form, which way they read. */

import { element } from "../../core/draw/dom.js";
import { tokenName } from "../../core/text/text.js";
import { gapsBefore } from "../../core/text/words.js";

/**
 * @typedef {import("../../core/data/data.js").Tokens} Tokens
 * @typedef {import("../../core/data/attention.js").Side} Side
 * @typedef {{segment: number, from: number, to: number}} Line
 */

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LETTER = /\p{L}/u;

/**
 * The lines that tokens form: each text has its own.
 *
 * @param {Tokens} tokens
 * @param {number} from
 * @param {number} to
 * @returns {Line[]}
 */
function linesOf({ segment }, from, to) {
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
    const made = element("p", { class: "text-line", role: "group", dir: directionOf(tokens, line) });
    if (several) made.append(element("span", { class: "text-badge", "aria-hidden": "true" }, ["AB"[line.segment] ?? ""]));
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
 * A picture with its patches on it, and what stands before them as a line of tokens.
 *
 * @param {Tokens} tokens
 * @param {import("../../core/data/data.js").Picture} picture
 * @returns {{lines: HTMLElement[], items: HTMLElement[]}}
 */
export function patchedPicture(tokens, { source, first, rows, columns }) {
  const front = runningText(tokens, "", 0, first);
  const image = element("img", { src: source, alt: "The picture" });
  const patches = Array.from({ length: rows * columns }, (_, i) => {
    const patch = wordOf(tokens, "", first + i);
    patch.classList.add("patch");
    return patch;
  });
  const grid = element("div", { class: "text-picture" }, [image, ...patches]);
  grid.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
  grid.style.aspectRatio = `${columns} / ${rows}`;
  return { lines: [...front.lines, grid], items: [...front.items, ...patches] };
}

/**
 * @param {Tokens} tokens
 * @param {Side | ""} side
 * @param {number} index
 */
function wordOf(tokens, side, index) {
  const names = tokens.special[index] ? "text-token special" : "text-token";
  const item = element("bdi", { class: names, role: "option", "aria-selected": "false", tabindex: "-1" });
  item.textContent = tokenName(tokens, index);
  item.dataset.index = String(index);
  item.dataset.side = side;
  return item;
}
