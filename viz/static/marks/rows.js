/**
 * Tokens as rows, and in menus.
 *
 * @import { Focus, Side } from "../core/data/attention.js"
 * @import { Tokens } from "../core/data/data.js"
 * @import { Example } from "../core/data/example.js"
 */

import { menu } from "../core/draw/controls.js";
import { element, tokenChip } from "../core/draw/dom.js";
import { tokenText } from "../core/text/text.js";

/** CSS pixels between two sentences. */
const BETWEEN = 14;
/** From this many tokens on, rows are lower. */
const MANY = 64;
const ROW = 26;
export const LOW_ROW = 21;

/** @param {Example} example @returns {number} */
export function rowHeight({ tokens, keyTokens }) {
  return Math.max(tokens.text.length, keyTokens.text.length) > MANY ? LOW_ROW : ROW;
}

export class Rows {
  /**
   * @param {Tokens} tokens
   * @param {Side} side
   * @param {string} label
   * @param {number} height  of a row
   */
  constructor(tokens, side, label, height) {
    this.size = tokens.text.length;
    const { segment } = tokens;
    const tops = new Float64Array(this.size + 1);
    for (let i = 1; i <= this.size; i += 1) {
      const second = i < this.size && segment[i] !== segment[i - 1];
      tops[i] = tops[i - 1] + height + (second ? BETWEEN : 0);
    }
    this.middles = tops.subarray(0, -1).map((top) => top + height / 2);
    this.items = tokens.text.map((_, i) => {
      const attributes = { class: tokens.special[i] ? "token special" : "token", role: "option", tabindex: "-1", "data-side": side, "data-index": String(i) };
      const item = element("li", attributes, [tokenChip(tokens, i)]);
      item.style.top = `${tops[i]}px`;
      return item;
    });
    this.root = element("ul", { class: `column ${side}`, role: "listbox", "aria-label": label }, this.items);
    this.root.style.height = `${tops[this.size]}px`;
    /** The only row that Tab reaches. */
    this.stop = 0;
  }

  /** @param {number} focus @param {number | null} kept */
  mark(focus, kept) {
    this.items.forEach((item, i) => {
      item.classList.toggle("focus", i === focus);
      item.classList.toggle("kept", i === kept);
      item.setAttribute("aria-selected", String(i === kept));
      item.tabIndex = i === this.stop ? 0 : -1;
    });
  }
}

/** The token an event happened on. @param {EventTarget | null} target @returns {Focus | null} */
export function tokenOf(target) {
  const item = target instanceof Element ? target.closest(".token") : null;
  if (!(item instanceof HTMLElement)) return null;
  const side = item.dataset.side === "key" ? "key" : "query";
  return { side, index: Number(item.dataset.index) };
}

/** Tokens in a menu at a time. */
const OFFERED = 1000;

/** A menu of the tokens of a text. @param {string} name @param {(index: number) => void} choose */
export function tokenMenu(name, choose) {
  const made = menu(name, [], (value) => choose(Number(value)));
  made.classList.add("token-menu");
  return made;
}

/** Chooses a token in the menu, which has those around it. @param {HTMLSelectElement} pick @param {Tokens} tokens @param {number} chosen */
export function chooseToken(pick, tokens, chosen) {
  if (!pick.querySelector(`[value="${chosen}"]`)) {
    const first = Math.max(0, Math.min(chosen - OFFERED / 2, tokens.text.length - OFFERED));
    const choices = tokens.text.slice(first, first + OFFERED).map((_, i) => {
      const { mark, text } = tokenText(tokens, first + i, 24);
      return element("option", { value: String(first + i) }, [`${first + i}  ${mark}${text}`]);
    });
    pick.replaceChildren(...choices);
  }
  pick.value = String(chosen);
}
