/**
 * The steps of the arithmetic view as elements: words, formulas, numbers.
 *
 * @import { Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 */
import { cssColors, edgesOf, penOn } from "../../core/draw/canvas.js";
import { shadeTable } from "../../core/draw/colors.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { CanvasPen } from "../../core/export/pens.js";
import { written } from "../../core/text/numbers.js";
import { drawBars, drawStrip } from "../../marks/strips.js";

/**
 * A formula: letters in italics where they stand between underscores, numbers as they are.
 *
 * @param {(string | Node)[]} parts
 */
export function formula(...parts) {
  const shown = parts.map((part) => (typeof part === "string" ? letters(part) : [part]));
  return element("p", { class: "sum-formula" }, shown.flat());
}

/** @param {string} text @returns {(string | Node)[]} */
function letters(text) {
  return text.split("_").map((part, i) => (i % 2 ? element("var", {}, [part]) : part));
}

/** @param {(string | Node)[]} parts */
export function words(...parts) {
  return element("p", { class: "sum-words" }, parts);
}

/** @param {string} id @param {string} title @param {(Node | string)[]} children */
export function step(id, title, children) {
  const made = element("li", { class: "sum-step" }, [element("h2", {}, [title]), ...children]);
  made.dataset.step = id;
  return made;
}

/**
 * A table in columns beside one another, so that all its numbers are in sight at once.
 *
 * @param {string} id
 * @param {string[]} names
 * @param {number[]} order  the rows
 * @param {(row: number) => number[]} numbersOf
 */
export function numberTables(id, names, order, numbersOf) {
  const rows = Math.max(8, Math.ceil(order.length / 4));
  const tables = [];
  for (let from = 0; from < order.length; from += rows) {
    const body = order.slice(from, from + rows).map((row) => {
      const made = element("tr", {}, [
        element("th", { scope: "row" }, [String(row)]),
        ...numbersOf(row).map((value) => element("td", { "data-value": String(value) }, [written(value)])),
      ]);
      made.dataset.row = String(row);
      return made;
    });
    const head = element("tr", {}, ["dim.", ...names].map((name) => element("th", { scope: "col" }, [name])));
    tables.push(element("table", {}, [element("thead", {}, [head]), element("tbody", {}, body)]));
  }
  const made = element("div", { class: "sum-tables" }, tables);
  made.dataset.table = id;
  return made;
}

/** A token in a sentence. @param {Tokens} tokens @param {number} index @param {number} [limit] */
export function named(tokens, index, limit = 40) {
  return element("strong", { class: "sum-token" }, [tokenChip(tokens, index, limit)]);
}

/**
 * The two lists of tokens of the arithmetic view: which one looks, and which is looked at.
 */

/** Tokens of a long text that are in the document at once. */
const MOST = 160;

/**
 * @typedef {object} Picked
 * @property {number} chosen
 * @property {((index: number) => string) | null} shade  the colour behind a token
 * @property {(index: number) => boolean} masked
 */

export class TokenPicker {
  /** @param {Tokens} tokens @param {Side} side @param {string} words */
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

  /** @param {number} to @param {string} words */
  jump(to, words) {
    const item = element("li", { class: "token jump", role: "option", "aria-selected": "false" }, [words]);
    item.dataset.side = this.side;
    item.dataset.index = String(to);
    return item;
  }
}

const TALL = 132;
const CELL = 20;
const APART = 6;

/**
 * @typedef {object} BarPicture
 * @property {{name: string, numbers: ArrayLike<number>, scale: number}[]} strips  drawn as cells
 * @property {ArrayLike<number>} bars
 * @property {number[]} order  of the dimensions
 * @property {"light" | "dark"} theme
 * @property {number} pointed  the place that is pointed at, or -1
 */

/**
 * Draws strips of cells, and below them a bar for each dimension.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width  CSS pixels
 * @param {BarPicture} picture
 */
export function drawPlot(canvas, width, { strips, bars, order, theme, pointed }) {
  const { ground, hair, ink } = cssColors(canvas);
  const start = strips.length * (CELL + APART) + APART;
  const pen = penOn(canvas, width, start + TALL);
  const shades = shadeTable(theme);
  strips.forEach(({ numbers, scale }, i) => {
    const sorted = order.map((dimension) => numbers[dimension]);
    drawStrip(pen, { numbers: sorted, left: 0, width, top: i * (CELL + APART), height: CELL, scale }, shades, ground);
  });
  drawBars(new CanvasPen(pen, devicePixelRatio || 1), { numbers: order.map((dimension) => bars[dimension]), left: 0, width, top: start, height: TALL }, theme, hair);
  if (pointed < 0) return;
  const edges = edgesOf(0, width, order.length);
  pen.strokeStyle = ink;
  pen.strokeRect(edges[pointed] + 0.5, 0.5, Math.max(edges[pointed + 1] - edges[pointed] - 1, 1), start + TALL - 1);
}
