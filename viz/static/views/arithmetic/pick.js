/**
 * The two lists of tokens of the arithmetic view: which one looks, and which is looked at.
 *
 * @import { Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 */

import { element, tokenChip } from "../../core/draw/dom.js";

/** Tokens of a long text that are in the document at once. */
const MOST = 160;

/**
 * @typedef {object} Picked
 * @property {number} chosen
 * @property {((index: number) => string) | null} shade  the colour behind a token
 * @property {(index: number) => boolean} masked
 */

export class TokenPicker {
  /**
   * @param {Tokens} tokens
   * @param {Side} side
   * @param {string} words
   */
  constructor(tokens, side, words) {
    this.tokens = tokens;
    this.side = side;
    this.list = element("ul", { class: `sum-tokens ${side}`, role: "listbox", "aria-label": words });
    const caption = element("p", { class: "sum-caption" }, [element("strong", {}, [words]), ` ${side}`]);
    this.root = element("div", { class: "sum-picker" }, [caption, this.list]);
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
    this.first = -1;
  }

  /** @param {Picked} picked */
  show({ chosen, shade, masked }) {
    this.fill(chosen);
    for (const [i, item] of this.items) {
      item.classList.toggle("chosen", i === chosen);
      item.classList.toggle("masked", masked(i));
      item.setAttribute("aria-selected", String(i === chosen));
      item.tabIndex = i === chosen ? 0 : -1;
      item.style.backgroundColor = shade && i !== chosen ? shade(i) : "";
    }
    const item = this.items.get(chosen);
    if (item) this.list.scrollTop = Math.max(0, item.offsetTop - this.list.clientHeight / 2);
  }

  /** Puts the tokens around the chosen one into the document. @param {number} chosen */
  fill(chosen) {
    const n = this.tokens.text.length;
    const first = Math.max(0, Math.min(chosen - MOST / 2, n - MOST));
    const there = this.items.has(chosen) && (n <= MOST || Math.abs(first - this.first) < MOST / 3);
    if (there) return;
    this.first = first;
    this.items.clear();
    const end = Math.min(n, first + MOST);
    for (let i = first; i < end; i += 1) this.items.set(i, this.item(i));
    const parts = [...this.items.values()];
    if (first > 0) parts.unshift(this.jump(first - 1, `… ${first} before`));
    if (end < n) parts.push(this.jump(end, `${n - end} more …`));
    this.list.replaceChildren(...parts);
  }

  /** @param {number} i */
  item(i) {
    const names = this.tokens.special[i] ? "token special" : "token";
    const item = element("li", { class: names, role: "option" }, [tokenChip(this.tokens, i, 40)]);
    item.dataset.side = this.side;
    item.dataset.index = String(i);
    return item;
  }

  /**
   * @param {number} to
   * @param {string} words
   */
  jump(to, words) {
    const item = element("li", { class: "token jump", role: "option", "aria-selected": "false" }, [words]);
    item.dataset.side = this.side;
    item.dataset.index = String(to);
    return item;
  }
}

