/**
 * The layers view: what each layer would predict at each position, read by the model's own head.
 *
 * A row a position, a column a place in the model; the last column is what the model answers.
 * Of a long text only the rows near the window are elements.
 *
 * @import { Lens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Figure } from "../../core/export/figure.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { State } from "../../core/state/state.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { sentenceOfLens } from "../../core/data/sentence.js";
import { usualQuery } from "../../core/data/softmax.js";
import { signColor, strongest, withAlpha } from "../../core/draw/colors.js";
import { cssColors, onPaper } from "../../core/draw/canvas.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { afterEscape, keptToken } from "../../core/state/state.js";
import { matchesOf, percent, tokenName, visible } from "../../core/text/text.js";
import { legendOf, track } from "../../marks/cards.js";

/**
 * @typedef {{row: number, point: number}} Cell
 *
 * @type {Record<string, [number, number]>}
 */
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The view, which is there once its numbers are: a model behind the page is asked for them. */
class AskedLayersView {
  /** @param {Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.root = element("div", { class: "layers-asked" });
    this.side = /** @type {HTMLElement[]} */ ([]);
    this.view = /** @type {LayersView | null} */ (null);
  }

  async update() {
    (await this.there()).update();
  }

  async there() {
    const lens = await this.stage.example.lens();
    if (!lens) throw new Error("this text has no predictions of its layers");
    if (!this.view) {
      this.view = new LayersView(this.stage, lens);
      this.root.append(this.view.root);
    }
    return this.view;
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    return this.view?.keydown(event) ?? false;
  }

  says() {
    return this.view?.says() ?? [];
  }

  async figure() {
    return (await this.there()).figure();
  }
}

class LayersView extends Staged {
  /** @param {Stage} stage @param {Lens} lens */
  constructor(stage, lens) {
    super(stage);
    const { example } = stage;
    this.lens = lens;
    this.table = new LayersTable(example, this.lens, () => this.paint(), stage.ended);
    this.card = new LayersCard(example, this.lens);
    this.key = createLayersKey();
    const legend = createLayersLegend(example.header.causal);
    this.root = element("div", { class: "layers-view" }, [this.key.root, this.table.root, this.card.root, legend]);
    this.pointed = /** @type {Cell | null} */ (null);
    /** Where the keyboard is. @type {Cell | null} */
    this.cursor = null;
    /** The column that the kept position was chosen in. @type {number | null} */
    this.kept = null;
    this.seen = /** @type {number | null} */ (null);
    this.listen();
  }

  update() {
    const { query, beside } = this.store.get();
    this.table.fit(beside === null ? 1 : 2);
    if (query !== null && query !== this.seen) {
      if (this.cursor) this.cursor = { ...this.cursor, row: query };
      this.table.reveal(query);
    }
    this.seen = query;
    this.paint();
    this.root.dataset.drawn = "true";
  }

  listen() {
    const { root, body, head } = this.table;
    const point = (/** @type {Cell | null} */ cell) => {
      if (cell?.row === this.pointed?.row && cell?.point === this.pointed?.point) return;
      this.pointed = cell;
      this.paint();
    };
    body.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") point(this.table.cellOf(event.target));
    });
    body.addEventListener("pointerleave", () => point(null));
    body.addEventListener("click", (event) => {
      const cell = this.table.cellOf(event.target);
      if (!cell) return;
      this.cursor = cell;
      this.keep(cell);
    });
    root.addEventListener("focus", () => {
      this.cursor ??= { row: this.store.get().query ?? this.table.first, point: this.lens.points.length - 1 };
      this.paint();
    });
    root.addEventListener("blur", () => this.paint());
    head.addEventListener("click", (event) => {
      const layer = event.target instanceof HTMLElement ? event.target.dataset.layer : undefined;
      if (layer) this.store.set({ layer: Number(layer) });
    });
  }

  /** Keeps a position, or lets it go: another cell of its row shows that cell instead. @param {Cell} cell */
  keep({ row, point }) {
    const again = this.store.get().query === row && this.kept === point;
    this.kept = again ? null : point;
    if (again) this.cursor = null;
    this.store.set({ query: again ? null : row, key: null, anchor: "query" });
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown({ key, target }) {
    const state = this.store.get();
    if (key === "Escape") {
      this.kept = null;
      if (!keptToken(state) && target === this.table.root) this.table.root.blur();
      this.cursor = null;
      this.store.set(afterEscape(state));
      return true;
    }
    const step = STEPS[key];
    if (target !== this.table.root || !this.cursor) return false;
    if (key === "Enter" || key === " ") {
      this.keep(this.cursor);
      return true;
    }
    if (!step) return false;
    const row = Math.min(Math.max(this.cursor.row + step[1], 0), this.example.tokens.text.length - 1);
    const point = Math.min(Math.max(this.cursor.point + step[0], 0), this.lens.points.length - 1);
    this.cursor = { row, point };
    this.pointed = null;
    this.table.reveal(row);
    this.table.revealPoint(point);
    this.paint();
    return true;
  }

  /** The cell that the card is about. @returns {Cell | null} */
  cell() {
    if (this.pointed) return this.pointed;
    const root = /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
    if (this.cursor && root.activeElement === this.table.root) return this.cursor;
    const { query } = this.store.get();
    return query === null ? null : { row: query, point: this.kept ?? this.lens.points.length - 1 };
  }

  paint() {
    if (!this.root.isConnected) return;
    const { query, layer, find } = this.store.get();
    const theme = this.theme();
    const cell = this.cell();
    this.table.paint({ kept: query, layer, find, cell, theme });
    this.card.show(cell, theme);
    this.key.update(theme);
  }

  says() {
    return sentenceOfLens(this.example, this.lens, this.position());
  }

  /** The position that is told of: the kept one, else a masked one, else where the text goes on or its last word. */
  position() {
    const { tokens, causal } = this.example;
    const { query } = this.store.get();
    if (query !== null && query < tokens.text.length) return query;
    // Before a model the page says itself what it is about.
    const predicted = this.example.source?.predicted ?? null;
    if (predicted !== null) return predicted;
    const masked = tokens.text.findIndex((text, i) => tokens.special[i] && /mask/i.test(text));
    if (masked >= 0) return masked;
    return causal ? tokens.text.length - 1 : usualQuery(tokens);
  }

  figure() {
    return layersFigure(this.example, this.lens, this.store.get(), this.theme(), this.root);
  }
}

/** @type {Kind} */
export const layersKind = {
  id: "layers",
  label: "Layers",
  title: "What each layer would predict at each position",
  missing: ({ header: { lens } }) =>
    lens ? "" : "This model has no output head over words, or the page was made without its predictions.",
  oneHead: false,
  controls: ["layer"],
  create: (stage) => new AskedLayersView(stage),
};

/** CSS pixels of a row, as in lens.css. */
const ROW = 26;
/** How many elements the rows may be, and how far beyond the window they go, in CSS pixels. */
const MOST = 2200;
const NEAR = 400;

/**
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

/** A predicted token in a narrow cell. @param {string} token */
export function cellText(token) {
  return visible(token.trim() || token.replace(/ /g, "·"), 40);
}

class LayersTable {
  /**
   * @param {Example} example
   * @param {Lens} lens
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
    this.rows = /** @type {Row[]} */ ([]);
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

  /** @param {EventTarget | null} target @returns {Cell | null} */
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

class LayersCard {
  /** @param {Example} example @param {Lens} lens */
  constructor({ tokens }, lens) {
    this.tokens = tokens;
    this.lens = lens;
    this.root = element("section", { class: "layers-card", "aria-live": "polite", "aria-label": "Predictions in numbers" });
  }

  /** @param {Cell | null} cell @param {"light" | "dark"} theme */
  show(cell, theme) {
    if (!cell) {
      const hint = "Point at a cell to see its five most probable tokens. Click it to keep its position.";
      this.root.replaceChildren(element("p", { class: "hint" }, [hint]));
      return;
    }
    const { row, point } = cell;
    const { strings, probs, points } = this.lens;
    const bars = strings[point][row].map((token, i) => bar(token, probs[point][row][i], theme));
    this.root.replaceChildren(
      element("div", { class: "layers-about" }, [
        element("p", { class: "where" }, [placeOf(points, point).words]),
        element("h2", {}, ["at ", tokenChip(this.tokens, row, 24)]),
        element("p", { class: "where" }, [`position ${row}`]),
      ]),
      element("ol", { class: "layers-bars" }, bars),
    );
  }
}

/** @param {string} token @param {number} probability @param {"light" | "dark"} theme */
function bar(token, probability, theme) {
  const alone = { text: [token], raw: [null], special: [0], segment: [0], piece: [0] };
  return element("li", { class: "layers-bar" }, [
    element("span", { class: "layers-token" }, [tokenChip(alone, 0, 24)]),
    element("data", { value: String(probability) }, [percent(probability)]),
    track(probability, signColor(1, theme)),
  ]);
}

/** How to read the table. @param {boolean} causal */
function createLayersLegend(causal) {
  const what = causal ? "the token that follows" : "the token that stands there";
  const parts = [
    `Each cell is what the model would predict at that position, ${what}, if it stopped at that layer: its own output head reads what the layer leaves.`,
    "A click on a layer's number opens that layer in the other pictures.",
  ];
  return legendOf(parts, { "← →": "layer", "↑ ↓": "position", Enter: "keep", Esc: "let go" });
}

/**
 * What stands above the table, where it is seen before any of it: rows, columns, shades.
 *
 * @returns {{root: HTMLElement, update: (theme: "light" | "dark") => void}}
 */
function createLayersKey() {
  const samples = [0.05, 0.25, 0.5, 1];
  const patches = samples.map((sample) => element("li", {}, [`${100 * sample}\u202f%`]));
  const root = element("div", { class: "layers-key" }, [
    element("p", {}, ["A row a token, a column a layer: what the model would say if it stopped there. "]),
    element("ul", { class: "layers-samples", "aria-label": "Shades: how probable it is" }, patches),
    element("p", {}, [element("strong", {}, ["bold"]), ": what the output says too"]),
  ]);
  return {
    root,
    update(theme) {
      const color = signColor(1, theme);
      patches.forEach((patch, i) => {
        patch.style.backgroundColor = withAlpha(color, samples[i] * strongest(color, theme));
      });
    },
  };
}

const MARGIN = 16;
const NAMES = 120;
const WIDTH = 84;
const LINE = 24;
/** Rows of the picture; the table has all. */
const PICTURED = 200;

/**
 * @param {Example} example
 * @param {Lens} lens
 * @param {State} state
 * @param {"light" | "dark"} theme
 * @param {HTMLElement} root  whose colours it has
 * @returns {Figure}
 */
function layersFigure({ tokens }, { points, strings, probs }, { query }, theme, root) {
  const { ink, soft, hair, paper } = cssColors(root);
  const blue = signColor(1, theme);
  const size = tokens.text.length;
  const first = Math.max(0, Math.min((query ?? 0) - PICTURED / 2, size - PICTURED));
  const rows = Math.min(size, PICTURED);
  const left = (/** @type {number} */ point) => MARGIN + NAMES + point * WIDTH;
  return {
    name: "prediction-layers",
    width: left(points.length) + MARGIN,
    height: 2 * MARGIN + (rows + 1) * LINE,
    paper,
    paint(pen) {
      points.forEach((_, point) => {
        pen.text(left(point) + WIDTH / 2, MARGIN + 15, placeOf(points, point).short, { size: 12, color: soft, anchor: "middle" });
      });
      for (let i = 0; i < rows; i += 1) {
        const [row, top] = [first + i, MARGIN + (i + 1) * LINE];
        pen.line(MARGIN, top, left(points.length), top, hair, 1);
        pen.text(left(0) - 10, top + 16, cut(tokenName(tokens, row), 16), { size: 13, color: ink, anchor: "end", bold: row === query });
        points.forEach((__, point) => {
          const [token, probability] = [strings[point][row][0], probs[point][row][0]];
          pen.rect(left(point) + 1, top + 1, WIDTH - 2, LINE - 2, blue, probability * strongest(blue, theme));
          const bold = token === strings[points.length - 1][row][0];
          pen.text(left(point) + WIDTH / 2, top + 16, cut(cellText(token), 11), { size: 12, color: ink, anchor: "middle", bold });
        });
      }
    },
    columns: ["position", "token", "point", "rank", "prediction", "probability"],
    *rows() {
      for (let row = 0; row < size; row += 1) {
        for (const [point, name] of points.entries()) {
          for (const [rank, prediction] of strings[point][row].entries()) {
            yield [row, tokens.text[row], name, rank + 1, prediction, probs[point][row][rank]];
          }
        }
      }
    },
  };
}

/** @param {string} text @param {number} limit */
function cut(text, limit) {
  const characters = [...text];
  return characters.length > limit ? `${characters.slice(0, limit - 1).join("")}…` : text;
}
