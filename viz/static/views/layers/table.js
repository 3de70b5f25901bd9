/** The table of the layers view: rows of positions, of which those near the window are there. */

import { withAlpha } from "../../core/draw/colors.js";
import { strongest } from "../../core/draw/contrast.js";
import { element } from "../../core/draw/dom.js";
import { onPaper } from "../../core/draw/paper.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { matchesOf } from "../../core/text/matches.js";
import { tokenName, visible } from "../../core/text/text.js";

/** CSS pixels of a row, as in lens.css. */
const ROW = 26;
/** How many elements the rows may be, and how far beyond the window they go, in CSS pixels. */
const MOST = 2200;
const NEAR = 400;

/**
 * @typedef {import("./layers.js").Cell} Cell
 * @typedef {{root: HTMLElement, name: HTMLElement, cells: HTMLElement[]}} Row
 * @typedef {{kept: number | null, layer: number, find: string, cell: Cell | null, theme: "light" | "dark"}} Look
 */

let made = 0;

/**
 * A place in the model, as a column is named: "resid_post 3" is what layer 3 leaves.
 *
 * @param {string[]} points
 * @param {number} point
 * @returns {{short: string, words: string, layer: number | null}}
 */
export function placeOf(points, point) {
  const after = /^resid_post (\d+)$/.exec(points[point]);
  if (points[point] === "embed") return { short: "embed", words: "Before the first layer", layer: null };
  if (!after) return { short: visible(points[point], 20), words: visible(points[point], 40), layer: null };
  const layer = Number(after[1]);
  if (point === points.length - 1) return { short: "output", words: `After layer ${layer}, the output`, layer };
  return { short: String(layer), words: `After layer ${layer}`, layer };
}

/**
 * A predicted token in a narrow cell.
 *
 * @param {string} token
 */
export function cellText(token) {
  return visible(token.trim() || token.replace(/ /g, "·"), 40);
}

export class LayersTable {
  /**
   * @param {import("../../core/data/example.js").Example} example
   * @param {import("../../core/data/data.js").Lens} lens
   * @param {() => void} changed  called when other rows are there
   * @param {AbortSignal} ended
   */
  constructor(example, lens, changed, ended) {
    this.tokens = example.tokens;
    this.layers = example.layers;
    this.lens = lens;
    this.size = example.tokens.text.length;
    this.changed = changed;
    made += 1;
    this.id = `layers-${made}`;
    this.first = 0;
    /** @type {Row[]} */
    this.rows = [];
    this.tables = 1;
    this.names = lens.points.map((_, point) => this.columnName(point));
    const corner = element("span", { class: "layers-corner", role: "columnheader" }, ["position"]);
    this.head = element("div", { class: "layers-head", role: "row" }, [corner, ...this.names]);
    this.lines = element("div", { class: "layers-lines", role: "rowgroup" });
    this.lines.style.height = `${this.size * ROW}px`;
    this.mark = element("span", { class: "layers-anchor", "aria-hidden": "true" });
    this.lines.append(this.mark);
    this.top = element("div", { class: "layers-top", role: "rowgroup" }, [this.head]);
    this.body = element("div", { class: "layers-body", role: "presentation" }, [this.lines]);
    this.root = element("div", { class: "layers-table", role: "grid", tabindex: "0" }, [this.top, this.body]);
    this.root.setAttribute("aria-label", "Predictions: a row a position, a column a layer. Arrow keys move, Enter keeps a position.");
    this.root.setAttribute("aria-rowcount", String(this.size + 1));
    this.body.addEventListener("scroll", () => {
      this.top.scrollLeft = this.body.scrollLeft;
    });
    this.root.style.setProperty("--points", String(lens.points.length));
    let frame = 0;
    const later = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => this.root.isConnected && this.fit() && this.changed());
    };
    addEventListener("scroll", later, { passive: true, capture: true, signal: ended });
    new ResizeObserver(later).observe(this.root);
  }

  /** @param {number} point */
  columnName(point) {
    const { short, words, layer } = placeOf(this.lens.points, point);
    const name = element("span", { class: "layers-point", role: "columnheader", title: words, "aria-label": words }, [short]);
    if (layer !== null && this.layers.includes(layer)) name.dataset.layer = String(layer);
    return name;
  }

  /** How many rows are there at a time. */
  get held() {
    if (onPaper(this.root)) return this.size;
    return Math.min(this.size, Math.floor(MOST / this.tables / (this.lens.points.length + 2)));
  }

  /**
   * Puts the rows near the window in place; true when they are others than before.
   *
   * @param {number} [tables]  how many are on the page
   */
  fit(tables = this.tables) {
    this.tables = tables;
    while (this.rows.length > this.held) this.rows.pop()?.root.remove();
    const { top } = this.lines.getBoundingClientRect();
    const room = Math.max(0, this.held * ROW - innerHeight) / 2;
    const wanted = Math.floor((-top - Math.min(NEAR, room)) / ROW);
    const first = Math.max(0, Math.min(wanted, this.size - this.held));
    const isNear = Math.abs(first - this.first) * ROW < Math.min(NEAR, room) / 2 && first !== 0;
    if (this.rows.length === this.held && (first === this.first || isNear)) return false;
    this.first = first;
    while (this.rows.length < this.held) this.rows.push(this.createRow());
    this.rows.forEach((row, i) => this.fill(row, first + i));
    return true;
  }

  /** @returns {Row} */
  createRow() {
    const name = element("bdi", { class: "layers-name", role: "rowheader" });
    const cells = this.lens.points.map(() => element("bdi", { class: "layers-cell", role: "gridcell" }));
    const root = element("div", { class: "layers-row", role: "row" }, [name, ...cells]);
    this.lines.append(root);
    return { root, name, cells };
  }

  /** @param {Row} row @param {number} index */
  fill({ root, name, cells }, index) {
    root.dataset.index = String(index);
    root.style.transform = `translateY(${index * ROW}px)`;
    root.setAttribute("aria-rowindex", String(index + 2));
    root.classList.toggle("second", index > 0 && this.tokens.segment[index] !== this.tokens.segment[index - 1]);
    name.textContent = tokenName(this.tokens, index);
    name.classList.toggle("special", Boolean(this.tokens.special[index]));
    const { strings, points } = this.lens;
    const answer = strings[points.length - 1][index][0];
    cells.forEach((cell, point) => {
      const best = strings[point][index][0];
      cell.textContent = cellText(best);
      cell.id = `${this.id}-${index}-${point}`;
      cell.dataset.point = String(point);
      cell.classList.toggle("same", best === answer);
      // Painted anew with its own probability.
      cell.style.backgroundColor = "";
    });
    root.dataset.theme = "";
  }

  /**
   * @param {EventTarget | null} target
   * @returns {Cell | null}
   */
  cellOf(target) {
    if (!(target instanceof HTMLElement)) return null;
    const row = target.closest(".layers-row");
    if (!(row instanceof HTMLElement)) return null;
    const { point } = target.dataset;
    return { row: Number(row.dataset.index), point: point === undefined ? this.lens.points.length - 1 : Number(point) };
  }

  /** Brings a row into sight. @param {number} index */
  reveal(index) {
    this.mark.style.top = `${index * ROW}px`;
    this.mark.scrollIntoView({ block: "nearest" });
    this.fit();
  }

  /** @param {number} point */
  revealPoint(point) {
    const name = this.names[point];
    const left = name.offsetLeft - this.body.scrollLeft;
    const names = /** @type {HTMLElement} */ (this.head.firstElementChild).offsetWidth;
    if (left < names) this.body.scrollLeft = name.offsetLeft - names;
    else if (left + name.offsetWidth > this.body.clientWidth) {
      this.body.scrollLeft = name.offsetLeft + name.offsetWidth - this.body.clientWidth;
    }
  }

  /** @param {Look} look */
  paint({ kept, layer, find, cell, theme }) {
    const found = matchesOf(this.tokens, find).tokens;
    const color = signColor(1, theme);
    const most = strongest(color, theme);
    this.names.forEach((name) => name.classList.toggle("now", name.dataset.layer === String(layer)));
    for (const row of this.rows) {
      const index = Number(row.root.dataset.index);
      row.root.classList.toggle("kept", index === kept);
      row.root.classList.toggle("pointed", index === cell?.row);
      row.root.setAttribute("aria-selected", String(index === kept));
      row.name.classList.toggle("found", found.has(index));
      row.cells.forEach((one, point) => one.classList.toggle("pointed", cell?.row === index && cell.point === point));
      if (row.root.dataset.theme === theme) continue;
      row.root.dataset.theme = theme;
      row.cells.forEach((one, point) => {
        one.style.backgroundColor = withAlpha(color, this.lens.probs[point][index][0] * most);
      });
    }
    if (cell) this.root.setAttribute("aria-activedescendant", `${this.id}-${cell.row}-${cell.point}`);
    else this.root.removeAttribute("aria-activedescendant");
  }
}
