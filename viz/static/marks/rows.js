/**
 * Rows of tokens of which only those in sight are in the document.
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
   * @param {() => HTMLElement[]} [more]  what stands in a row behind its token
   */
  constructor(tokens, side, label, height, more = () => []) {
    this.tokens = tokens;
    this.side = side;
    this.more = more;
    this.size = tokens.text.length;
    /** Where each row begins, and at the end where the last one ends. */
    this.tops = topsOf(tokens, height);
    this.middles = this.tops.subarray(0, -1).map((top) => top + height / 2);
    this.root = element("ul", { class: `column ${side}`, role: "listbox", "aria-label": label });
    this.root.style.height = `${this.tops[this.size]}px`;
    /** The only row that Tab reaches, where it is there. */
    this.stop = 0;
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
  }

  /**
   * Puts the rows between two heights into the document, and takes out the others but for those in use.
   *
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    for (let i = 0; i < this.size; i += 1) {
      const item = this.items.get(i);
      if (this.tops[i] < to && this.tops[i + 1] >= from) this.at(i);
      else if (item && i !== this.stop && !item.matches(":focus, .kept, :has(.weight)")) {
        item.remove();
        this.items.delete(i);
      }
    }
  }

  /** The row of a token, made where it is not there. @param {number} i */
  at(i) {
    const there = this.items.get(i);
    if (there) return there;
    const attributes = {
      class: this.tokens.special[i] ? "token special" : "token",
      role: "option",
      tabindex: "-1",
      "aria-setsize": String(this.size),
      "aria-posinset": String(i + 1),
      "data-side": this.side,
      "data-index": String(i),
    };
    const item = element("li", attributes, [tokenChip(this.tokens, i), ...this.more()]);
    item.style.top = `${this.tops[i]}px`;
    // In reading order, as the keyboard and a reader's voice walk through them.
    let before = i - 1;
    while (before >= 0 && !this.items.has(before)) before -= 1;
    if (before < 0) this.root.prepend(item);
    else this.items.get(before)?.after(item);
    this.items.set(i, item);
    return item;
  }

  /** @param {number} focus @param {number | null} kept */
  mark(focus, kept) {
    const reached = this.items.get(this.stop) ?? this.root.firstChild;
    for (const [i, item] of this.items) {
      item.classList.toggle("focus", i === focus);
      item.classList.toggle("kept", i === kept);
      item.setAttribute("aria-selected", String(i === kept));
      item.tabIndex = item === reached ? 0 : -1;
    }
  }
}

/** @param {Tokens} tokens @param {number} height */
function topsOf({ segment }, height) {
  const tops = new Float64Array(segment.length + 1);
  for (let i = 1; i <= segment.length; i += 1) {
    const second = i < segment.length && segment[i] !== segment[i - 1];
    tops[i] = tops[i - 1] + height + (second ? BETWEEN : 0);
  }
  return tops;
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
