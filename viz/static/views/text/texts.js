/**
 * The words of the text view: one text, or two where those that look are not those looked at.
 *
 * A very long text is on the page in parts.
 *
 * @import { Focus, Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Scene } from "./text.js"
 */

import { element } from "../../core/draw/dom.js";
import { gapsBefore, tokenName } from "../../core/text/text.js";

/** From so many tokens on, a text is set smaller. */
const MANY = 120;
/** How many tokens of a text are on the page at a time: four texts may stand side by side. */
const PART = 680;

export class Texts {
  /** @param {Example} example @param {() => void} changed  called when another part is on the page */
  constructor({ tokens, keyTokens }, changed) {
    this.tokens = { query: tokens, key: keyTokens };
    this.apart = keyTokens !== tokens;
    this.changed = changed;
    /** @type {Record<Side, HTMLElement[]>} */
    this.items = { query: [], key: [] };
    /** The first token of each text that is on the page. @type {Record<Side, number>} */
    this.first = { query: -1, key: -1 };
    const attributes = { class: "text-text", role: "listbox" };
    this.roots = { query: element("div", attributes), key: element("div", attributes) };
    const long = Math.max(tokens.text.length, keyTokens.text.length) > MANY;
    for (const root of Object.values(this.roots)) root.classList.toggle("dense", long);
    this.roots.query.setAttribute("aria-label", this.apart ? "Tokens that look" : "Tokens of the text");
    this.roots.key.setAttribute("aria-label", "Tokens that are looked at");
  }

  /** All that stands in the view, in order. */
  elements() {
    const caption = (/** @type {string} */ words) => element("p", { class: "text-caption" }, [words]);
    const { query, key } = this.roots;
    return this.apart ? [caption("the text that looks"), query, caption("where it looks"), key] : [query];
  }

  /** @returns {Side[]} */
  sides() {
    return this.apart ? ["query", "key"] : ["query"];
  }

  /** Where the elements of a side are. @param {Side} side @returns {Side} */
  place(side) {
    return this.apart ? side : "query";
  }

  /** Which kept token a text has. @param {Side} side @param {Record<Side, number | null>} kept */
  keptIn(side, kept) {
    return this.apart ? kept[side] : (kept.query ?? kept.key);
  }

  /** Puts the parts on the page that have the kept tokens. @param {Record<Side, number | null>} kept */
  build(kept) {
    for (const side of this.sides()) {
      const index = this.keptIn(side, kept);
      const first = this.first[side];
      if (first < 0 || (index !== null && (index < first || index >= first + PART))) this.open(side, index ?? 0);
    }
  }

  /** @param {Side} side @param {number} index  a token of the part */
  open(side, index) {
    const size = this.tokens[side].text.length;
    const from = PART * Math.floor(index / PART);
    const to = Math.min(from + PART, size);
    const { lines, items } = runningText(this.tokens[side], this.apart ? side : "", from, to);
    this.first[side] = from;
    this.items[side] = items;
    if (items[0]) items[0].tabIndex = 0;
    const turn = (/** @type {number} */ at) => {
      const words = `tokens ${at} to ${Math.min(at + PART, size) - 1}`;
      const button = element("button", { type: "button", class: "quiet text-turn" }, [words]);
      button.addEventListener("click", () => {
        this.open(side, at);
        this.changed();
      });
      return button;
    };
    const parts = [...(from > 0 ? [turn(from - PART)] : []), ...lines, ...(to < size ? [turn(to)] : [])];
    this.roots[side].replaceChildren(...parts);
  }

  /** @param {Focus} token @returns {HTMLElement | undefined} */
  itemOf({ side, index }) {
    const place = this.place(side);
    return this.items[place][index - this.first[place]];
  }

  /** Gives the keyboard's focus to a token. @param {Focus} token */
  focus({ side, index }) {
    const place = this.place(side);
    if (!this.itemOf({ side, index })) {
      this.open(place, index);
      this.changed();
    }
    for (const item of this.items[place]) item.tabIndex = Number(item.dataset.index) === index ? 0 : -1;
    this.itemOf({ side, index })?.focus();
  }

  /**
   * Colours and marks.
   *
   * @param {Scene} scene
   * @param {Side} shaded
   * @param {(value: number) => string} shade
   * @param {Record<Side, number | null>} kept
   */
  paint(scene, shaded, shade, kept) {
    const { values } = scene.shading;
    for (const side of this.sides()) {
      const here = side === this.place(shaded);
      this.items[side].forEach((item, i) => {
        const index = this.first[side] + i;
        const value = here ? values[index] : 0;
        item.style.backgroundColor = value ? shade(value) : "";
        item.classList.toggle("out", here && !scene.takesPart[index]);
        const query = side === "query" && kept.query === index;
        const key = side === this.place("key") && kept.key === index;
        item.classList.toggle("kept", query || key);
        item.classList.toggle("key", key && !query);
        item.setAttribute("aria-selected", String(query || key));
      });
    }
  }
}

/**
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
  const lines = /** @type {Line[]} */ ([]);
  for (let i = from; i < to; i += 1) {
    const last = lines[lines.length - 1];
    if (last && last.segment === segment[i]) last.to = i + 1;
    else lines.push({ segment: segment[i], from: i, to: i + 1 });
  }
  return lines;
}

/** The direction that most words of a line have. @param {Tokens} tokens @param {Line} line */
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
function runningText(tokens, side, from, to) {
  const gaps = gapsBefore(tokens);
  const several = tokens.segment.includes(1) && tokens.segment.includes(0);
  const items = /** @type {HTMLElement[]} */ ([]);
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

/** @param {Tokens} tokens @param {Side | ""} side @param {number} index */
function wordOf(tokens, side, index) {
  const names = tokens.special[index] ? "text-token special" : "text-token";
  const item = element("bdi", { class: names, role: "option", "aria-selected": "false", tabindex: "-1" });
  item.textContent = tokenName(tokens, index);
  item.dataset.index = String(index);
  item.dataset.side = side;
  return item;
}
