/**
 * Rows of tokens of which only those in sight are in the document.
 *
 * @typedef {object} Span  rows [first, end)
 * @property {number} first
 * @property {number} end
 */

import { element, tokenChip } from "../draw/dom.js";
import { tokenText } from "../draw/text.js";

/** CSS pixels between two sentences. */
const BETWEEN = 14;

/**
 * Where each row begins, and at the end where the last one ends.
 *
 * @param {import("../data/data.js").Tokens} tokens
 * @param {number} height  of a row
 * @returns {Float64Array}
 */
export function topsOf({ segment }, height) {
  const tops = new Float64Array(segment.length + 1);
  for (let i = 1; i <= segment.length; i += 1) {
    const second = i < segment.length && segment[i] !== segment[i - 1];
    tops[i] = tops[i - 1] + height + (second ? BETWEEN : 0);
  }
  return tops;
}

/**
 * The rows that touch a window, and some on either side.
 *
 * @param {Float64Array} tops
 * @param {number} from
 * @param {number} to
 * @returns {Span}
 */
export function spanOf(tops, from, to) {
  const n = tops.length - 1;
  let first = 0;
  while (first < n && tops[first + 1] < from) first += 1;
  let end = first;
  while (end < n && tops[end] < to) end += 1;
  return { first, end };
}

export class Rows {
  /**
   * @param {import("../data/data.js").Tokens} tokens
   * @param {import("../data/attention.js").Side} side
   * @param {string} label
   * @param {() => HTMLElement[]} more  what stands in a row behind its token
   */
  constructor(tokens, side, label, more) {
    this.tokens = tokens;
    this.side = side;
    this.more = more;
    this.root = element("ul", { class: `column ${side}`, role: "listbox", "aria-label": label });
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
  }

  /**
   * Puts the rows of a span into the document, and takes the others out.
   *
   * @param {Span} span
   * @param {Float64Array} tops
   */
  show({ first, end }, tops) {
    this.root.style.height = `${tops[tops.length - 1]}px`;
    for (const [i, item] of this.items) {
      if (i >= first && i < end) continue;
      item.remove();
      this.items.delete(i);
    }
    for (let i = first; i < end; i += 1) {
      const item = this.items.get(i) ?? this.add(i);
      item.style.top = `${tops[i]}px`;
    }
  }

  /** @param {number} i */
  add(i) {
    const names = this.tokens.special[i] ? "token special" : "token";
    const item = element("li", { class: names, role: "option", "aria-setsize": String(this.tokens.text.length) }, [
      tokenChip(tokenText(this.tokens, i)),
      ...this.more(),
    ]);
    item.setAttribute("aria-posinset", String(i + 1));
    item.dataset.side = this.side;
    item.dataset.index = String(i);
    // In reading order, as the keyboard and a reader's voice walk through them.
    const next = [...this.items.keys()].filter((other) => other > i);
    this.root.insertBefore(item, this.items.get(Math.min(...next)) ?? null);
    this.items.set(i, item);
    return item;
  }

  /**
   * @param {number} chosen  the only one that Tab reaches
   * @param {boolean} kept
   */
  mark(chosen, kept) {
    const reached = this.items.has(chosen) ? chosen : Math.min(...this.items.keys());
    for (const [i, item] of this.items) {
      item.tabIndex = i === reached ? 0 : -1;
      item.classList.toggle("focus", i === chosen);
      item.classList.toggle("kept", kept && i === chosen);
      item.setAttribute("aria-selected", String(kept && i === chosen));
    }
  }
}
