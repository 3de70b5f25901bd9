/**
 * The model view: every head of every layer as a small picture; a click opens one.
 *
 * One canvas a few rows high after another holds the pictures; two frames, plain elements, lie
 * over them, so that nothing is drawn again while the pointer moves.
 */

import { Measures, hasThumbnails, thumbnailsOf } from "../../core/data/measures.js";
import { headsNamed } from "../../core/data/named.js";
import { sentenceOfModel } from "../../core/data/sentence_of_views.js";
import { grouping, sharing } from "../../core/data/sharing.js";
import { STATISTICS } from "../../core/data/statistics.js";
import { headColor } from "../../core/draw/colors.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { element } from "../../core/draw/dom.js";
import { running } from "../../core/text/text.js";
import { cornerOf, heightOf, layOut, slotAt } from "../../marks/grid.js";
import { HeadCard, createModelLegend } from "./card.js";
import { createModelControls } from "./controls.js";
import { modelFigure } from "./figure.js";
import { paintTiles } from "./paint.js";

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
/** Milliseconds before heads are measured: their pictures are to be seen first. */
const PAUSE = 200;

export class ModelView {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor({ example, store, theme, ended }) {
    this.example = example;
    this.ended = ended;
    this.store = store;
    this.themeNow = theme;
    this.nLayers = example.layers.length;
    this.nHeads = example.heads.length;
    this.sizes = {
      nQueries: example.tokens.text.length,
      nKeys: example.keyTokens.text.length,
      causal: example.causal,
    };
    this.measures = new Measures(example);
    /** @type {import("../../core/data/example.js").Thumbnails | null} */
    this.thumbnails = null;
    /** @type {import("../../marks/grid.js").Grid | null} */
    this.grid = null;
    this.pointed = -1;
    this.cursor = -1;
    this.painted = "";
    /** Called when all heads were measured. @type {(() => void) | undefined} */
    this.measured = undefined;
    this.tiles = element("div", { class: "model-tiles" });
    this.hover = element("div", { class: "model-frame" });
    this.chosen = element("div", { class: "model-frame chosen" });
    this.board = element("div", { class: "model-board", tabindex: "0", role: "application" }, [this.tiles, this.hover, this.chosen]);
    this.controls = createModelControls(store, this.measures, example.header.patterns ?? []);
    this.root = element("div", { class: "model-view" }, [this.controls.root, this.board]);
    this.card = new HeadCard(example.header.name && running(example.header.name), (head) => sharing(example, head));
    this.legend = createModelLegend(Math.max(this.sizes.nQueries, this.sizes.nKeys) > 64, example.causal, Boolean(example.header.patterns), grouping(example));
    this.side = [this.card.root, this.legend.root];
    this.listen();
  }

  async update() {
    this.thumbnails = await thumbnailsOf(this.example);
    const { layer, heads } = this.store.get();
    const known = heads.length === 1 ? this.placeOf(layer, heads[0]) : -1;
    if (this.cursor < 0) this.cursor = known;
    this.paint();
    setTimeout(() => this.ended.aborted || this.measures.run(() => this.progress()).then(() => this.measured?.()), PAUSE);
  }

  async says() {
    const finished = new Promise((resolve) => (this.measured = () => resolve(null)));
    if (this.measures.possible && !this.measures.finished) await finished;
    return sentenceOfModel(this.example, this.measures);
  }

  /**
   * @param {number} layer
   * @param {number} head  numbers in the model
   */
  placeOf(layer, head) {
    return this.example.layers.indexOf(layer) * this.nHeads + this.example.heads.indexOf(head);
  }

  progress() {
    if (this.measures.finished) this.root.dataset.measured = "true";
    const { sort, mark } = this.store.get();
    if (this.root.isConnected && (this.measures.finished || !(sort || mark))) this.paint();
  }

  listen() {
    const point = (/** @type {number} */ place) => {
      if (place === this.pointed) return;
      this.pointed = place;
      this.show();
    };
    this.board.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") point(this.placeAt(event));
    });
    this.board.addEventListener("pointerleave", () => point(-1));
    this.board.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      const touched = event instanceof PointerEvent && event.pointerType === "touch";
      // A finger cannot point first: its first touch shows a head, its second opens it.
      const first = touched && place !== this.cursor;
      if (place < 0) return;
      this.cursor = place;
      if (first) this.show();
      else this.open(place);
    });
    new ResizeObserver(() => this.paint()).observe(this.board);
  }

  /** @param {MouseEvent} event */
  placeAt({ clientX, clientY }) {
    if (!this.grid) return -1;
    const box = this.board.getBoundingClientRect();
    const slot = slotAt(this.grid, clientX - box.left, clientY - box.top);
    return slot < 0 ? -1 : this.grid.places[slot];
  }

  /** @param {Event} event */
  headAt(event) {
    const place = event instanceof MouseEvent ? this.placeAt(event) : this.pointed < 0 ? this.cursor : this.pointed;
    if (place < 0 || !(event.target instanceof Node && this.board.contains(event.target))) return null;
    const [layer, head] = this.numbers(place);
    return { layer, head };
  }

  /** @param {number} place */
  open(place) {
    const [layer, head] = this.numbers(place);
    this.store.set({ view: "head", layer, heads: [head] });
  }

  /**
   * @param {number} place
   * @returns {[number, number]}  layer and head as the model numbers them
   */
  numbers(place) {
    const { layers, heads } = this.example;
    return [layers[Math.floor(place / this.nHeads)], heads[place % this.nHeads]];
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  keydown({ key, target }) {
    if (target instanceof HTMLButtonElement) return false;
    if (key === "Enter" && this.cursor >= 0) {
      this.open(this.cursor);
      return true;
    }
    if (key === "Escape" && this.cursor >= 0) {
      this.cursor = -1;
      this.show();
      return true;
    }
    const step = STEPS[key];
    if (!step || !this.grid) return false;
    this.move(this.grid, step);
    return true;
  }

  /**
   * @param {import("../../marks/grid.js").Grid} grid
   * @param {[number, number]} step
   */
  move({ places, columns }, [across, down]) {
    const slot = places.indexOf(this.cursor);
    const to = slot < 0 ? 0 : slot + across + down * columns;
    const sameRow = !across || Math.floor(to / columns) === Math.floor(slot / columns);
    if (slot >= 0 && (to < 0 || to >= places.length || !sameRow)) return;
    this.cursor = places[to];
    this.pointed = -1;
    this.show();
    this.chosen.scrollIntoView({ block: "nearest" });
  }

  /** The heads by rank, or null where they stand as in the model. */
  sorted() {
    const { sort } = this.store.get();
    if (!sort || !this.measures.finished) return null;
    const value = (/** @type {number} */ place) => this.measures.of(place, sort);
    const order = (/** @type {number} */ a, /** @type {number} */ b) =>
      Number(Number.isNaN(value(a))) - Number(Number.isNaN(value(b))) || value(b) - value(a) || a - b;
    return Array.from({ length: this.measures.total }, (_, i) => i).sort(order);
  }

  /**
   * What is marked: whether a head is, and its score.
   *
   * @returns {import("./paint.js").Marks}
   */
  marks() {
    const { mark } = this.store.get();
    const named = headsNamed(this.example, mark);
    if (named) return { any: true, has: (place) => named.has(place), score: (place) => named.get(place) ?? NaN };
    const pattern = STATISTICS.find(({ id }) => id === mark);
    if (!pattern || !this.measures.finished) return { any: false, has: () => true, score: () => NaN };
    const score = (/** @type {number} */ place) => this.measures.of(place, pattern.id);
    return { any: true, has: (place) => score(place) >= Number(pattern.mark), score };
  }

  paint() {
    if (!this.thumbnails || !this.root.isConnected) return;
    const { sort, mark } = this.store.get();
    const theme = this.themeNow();
    const marks = this.marks();
    const width = this.board.clientWidth;
    this.controls.update(marks);
    const wanted = [width, devicePixelRatio, theme, sort, mark, this.measures.finished].join(" ");
    if (wanted !== this.painted) {
      this.painted = wanted;
      this.grid = layOut(width, this.nLayers, this.nHeads, this.sorted());
      const { left, top, pitch, drop, side, columns } = this.grid;
      this.board.dataset.grid = [left, top, pitch, drop, side, columns].join(" ");
      this.board.style.height = `${heightOf(this.grid)}px`;
      paintTiles(this.tiles, { ...this, thumbnails: this.thumbnails, grid: this.grid, theme, marks, sort, ...cssColors(this.root) });
      this.label();
      this.root.dataset.drawn = "true";
    }
    this.show();
  }

  label() {
    const sentence = `${this.nLayers} layers of ${this.nHeads} heads, a small picture each.`;
    this.board.setAttribute("aria-label", `${sentence} Arrow keys move, Enter opens a head.`);
  }

  /** Frames and card: what changes while the pointer moves. */
  show() {
    const { grid, thumbnails } = this;
    if (!grid || !thumbnails) return;
    frame(this.hover, grid, this.pointed);
    frame(this.chosen, grid, this.cursor);
    const theme = this.themeNow();
    const colors = cssColors(this.root);
    this.legend.color(colors.ground, theme);
    const place = this.pointed < 0 ? this.cursor : this.pointed;
    if (place < 0) return this.card.show(null);
    const [layer, head] = this.numbers(place);
    const { measures, sizes } = this;
    const marked = this.store.get().mark;
    const { ground, paper } = colors;
    this.card.show({ place, layer, head, marked, color: headColor(head, theme), ground, paper, thumbnails, sizes, measures });
    return undefined;
  }

  async figure() {
    this.thumbnails ??= await thumbnailsOf(this.example);
    await this.measures.run(() => this.progress());
    return modelFigure({ ...this, thumbnails: this.thumbnails, theme: this.themeNow(), sorted: this.sorted(), ...cssColors(this.root) });
  }
}

/**
 * @param {HTMLElement} made
 * @param {import("../../marks/grid.js").Grid} grid
 * @param {number} place
 */
function frame(made, grid, place) {
  const slot = place < 0 ? -1 : grid.places.indexOf(place);
  made.hidden = slot < 0;
  if (slot < 0) return;
  const [left, top] = cornerOf(grid, slot);
  made.style.transform = `translate(${left}px, ${top}px)`;
  made.style.width = `${grid.side}px`;
  made.style.height = `${grid.side}px`;
}

/** @type {import("../../core/frame/kinds.js").Kind} */
export const modelKind = {
  id: "model",
  label: "Model",
  title: "Every head of every layer as a small picture",
  missing: (example) => (hasThumbnails(example) ? "" : "The page holds no attention of all heads."),
  oneHead: false,
  controls: [],
  create: (stage) => new ModelView(stage),
};
