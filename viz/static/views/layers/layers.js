/**
 * The layers view: what each layer would predict at each position, read by the model's own head.
 *
 * A row a position, a column a place in the model; the last column is what the model answers.
 * Of a long text only the rows near the window are elements.
 */

import { sentenceOfLens } from "../../core/data/sentence_of_views.js";
import { usualQuery } from "../../core/data/steps.js";
import { element } from "../../core/draw/dom.js";
import { afterEscape, keptToken } from "../../core/state/state.js";
import { LayersCard, createLayersKey, createLayersLegend } from "./card.js";
import { layersFigure } from "./figure.js";
import { LayersTable } from "./table.js";

/**
 * @typedef {{row: number, point: number}} Cell
 * @typedef {import("../../core/data/data.js").Lens} Lens
 *
 * @type {Record<string, [number, number]>}
 */
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The view, which is there once its numbers are: a model behind the page is asked for them. */
class AskedLayersView {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.root = element("div", { class: "layers-asked" });
    /** @type {HTMLElement[]} */
    this.side = [];
    /** @type {LayersView | null} */
    this.view = null;
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

class LayersView {
  /**
   * @param {import("../../core/frame/kinds.js").Stage} stage
   * @param {Lens} lens
   */
  constructor({ example, store, theme, ended }, lens) {
    this.example = example;
    this.store = store;
    this.theme = theme;
    this.lens = lens;
    this.table = new LayersTable(example, this.lens, () => this.paint(), ended);
    this.card = new LayersCard(example, this.lens);
    this.key = createLayersKey();
    const legend = createLayersLegend(example.header.causal);
    this.root = element("div", { class: "layers-view" }, [this.key.root, this.table.root, this.card.root, legend]);
    /** @type {Cell | null} */
    this.pointed = null;
    /** Where the keyboard is. @type {Cell | null} */
    this.cursor = null;
    /** The column that the kept position was chosen in. @type {number | null} */
    this.kept = null;
    /** @type {number | null} */
    this.seen = null;
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

  /**
   * Keeps a position, or lets it go: another cell of its row shows that cell instead.
   *
   * @param {Cell} cell
   */
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

/** @type {import("../../core/frame/kinds.js").Kind} */
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
