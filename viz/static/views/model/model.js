/**
 * The model view: every head of every layer as a small picture; a click opens one.
 *
 * One canvas a few rows high after another holds the pictures; two frames, plain elements, lie
 * over them, so that nothing is drawn again while the pointer moves.
 *
 * @import { Thumbnails } from "../../core/data/example.js"
 * @import { Named } from "../../core/data/sharing.js"
 * @import { Statistic } from "../../core/data/statistics.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Store } from "../../core/state/state.js"
 * @import { Grid } from "../../marks/grid.js"
 * @import { Marks } from "./paint.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { hasThumbnails, Measures, STATISTICS, thumbnailsOf, written } from "../../core/data/statistics.js";
import { grouping, headsNamed, sharing } from "../../core/data/sharing.js";
import { sentenceOfModel } from "../../core/data/sentence.js";
import { cssColors, penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { group, menu, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { running } from "../../core/text/text.js";
import { createRamp, legendOf } from "../../marks/cards.js";
import { cornerOf, heightOf, layOut, slotAt } from "../../marks/grid.js";
import { inksOf, modelFigure, paintTiles, thumbPainter } from "./paint.js";

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
/** Milliseconds before heads are measured: their pictures are to be seen first. */
const PAUSE = 200;

class ModelView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example, store } = stage;
    this.nLayers = example.layers.length;
    this.nHeads = example.heads.length;
    this.sizes = {
      nQueries: example.tokens.text.length,
      nKeys: example.keyTokens.text.length,
      causal: example.causal,
    };
    this.measures = new Measures(example);
    this.thumbnails = /** @type {Thumbnails | null} */ (null);
    this.grid = /** @type {Grid | null} */ (null);
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

  /** @param {number} layer @param {number} head  numbers in the model */
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

  /** @param {number} place @returns {[number, number]}  layer and head as the model numbers them */
  numbers(place) {
    const { layers, heads } = this.example;
    return [layers[Math.floor(place / this.nHeads)], heads[place % this.nHeads]];
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
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

  /** @param {Grid} grid @param {[number, number]} step */
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

  /** What is marked: whether a head is, and its score. @returns {Marks} */
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
    const theme = this.theme();
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
    const theme = this.theme();
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
    const look = { theme: this.theme(), sort: this.store.get().sort, marks: this.marks(), ...cssColors(this.root) };
    return modelFigure({ ...this, ...look, thumbnails: this.thumbnails }, this.sorted());
  }
}

/** @param {HTMLElement} made @param {Grid} grid @param {number} place */
function frame(made, grid, place) {
  const slot = place < 0 ? -1 : grid.places.indexOf(place);
  made.hidden = slot < 0;
  if (slot < 0) return;
  const [left, top] = cornerOf(grid, slot);
  made.style.transform = `translate(${left}px, ${top}px)`;
  made.style.width = `${grid.side}px`;
  made.style.height = `${grid.side}px`;
}

/** @type {Kind} */
export const modelKind = {
  id: "model",
  label: "Model",
  title: "Every head of every layer as a small picture",
  missing: (example) => (hasThumbnails(example) ? "" : "The page holds no attention of all heads."),
  oneHead: false,
  controls: [],
  create: (stage) => new ModelView(stage),
};

/** Device pixels a side of the larger picture, before the browser fits it. */
const SIDE = 448;
const KEYS = { "← ↑ → ↓": "move", Enter: "open" };

export class HeadCard {
  /**
   * @param {string} name  of the text, where there are several
   * @param {(head: number) => string} shared  which heads share its keys and values
   */
  constructor(name, shared) {
    this.shared = shared;
    this.sharing = element("p", { class: "hint" });
    this.where = element("p", { class: "where" }, [name ? `Attention of ${name}` : "Attention of"]);
    this.title = element("h2");
    this.canvas = element("canvas", { class: "model-large", "aria-hidden": "true" });
    this.canvas.width = SIDE;
    this.canvas.height = SIDE;
    this.rows = STATISTICS.map(statisticRow);
    this.open = element("p", { class: "hint" }, ["Click to open this head."]);
    const list = element("ul", { class: "bars" }, this.rows.map(({ row }) => row));
    this.body = element("div", { class: "model-body" }, [this.canvas, list]);
    this.hint = element("p", { class: "hint" }, [
      "Each square is one head. Point at one to see it larger and in numbers; click it to open it.",
    ]);
    this.root = element("section", { class: "details model-card", "aria-live": "polite" });
    this.root.setAttribute("aria-label", "One head in numbers");
    this.root.append(this.hint, this.where, this.title, this.body, this.sharing, this.open);
    this.show(null);
  }

  /**
   * @param {null | {place: number, layer: number, head: number, marked: string, color: string,
   *   ground: string, paper: string, thumbnails: Thumbnails,
   *   sizes: {nQueries: number, nKeys: number, causal: boolean},
   *   measures: Measures}} head
   */
  show(head) {
    this.root.dataset.shows = head ? "head" : "hint";
    this.hint.hidden = head !== null;
    for (const part of [this.where, this.title, this.body, this.sharing, this.open]) part.hidden = head === null;
    if (!head) return;
    const { place, layer, measures, marked } = head;
    this.title.textContent = `Layer ${layer}, head ${head.head}`;
    this.sharing.textContent = this.shared(head.head);
    this.paint(head);
    this.rows.forEach(({ row, fill, number }, i) => {
      const statistic = STATISTICS[i];
      const value = measures.of(place, statistic.id);
      const missing = measures.finished || !measures.possible ? "–" : "…";
      number.textContent = place >= measures.done ? missing : written(statistic, value);
      number.value = Number.isNaN(value) ? "" : String(value);
      row.classList.toggle("marked", marked === statistic.id);
      if (!fill) return;
      fill.style.width = `${Number.isNaN(value) ? 0 : Math.min(value, 1) * 100}%`;
      fill.style.backgroundColor = head.color;
    });
  }

  /** @param {NonNullable<Parameters<HeadCard["show"]>[0]>} head */
  paint({ place, color, ground, paper, thumbnails, sizes }) {
    const pen = penOf(this.canvas);
    const image = pen.createImageData(SIDE, SIDE);
    const paint = thumbPainter(thumbnails, sizes, SIDE);
    paint(new Uint32Array(image.data.buffer), SIDE, 0, place, inksOf(color, ground, paper, 1));
    pen.putImageData(image, 0, 0);
  }
}

/** @param {Statistic} statistic */
function statisticRow({ id, label, says, unit }) {
  const number = element("data");
  const name = element("span", { class: "statistic" }, [label]);
  const fill = unit === "share" ? element("span", { class: "fill" }) : null;
  const track = element("span", { class: fill ? "track" : "no-track" }, fill ? [fill] : []);
  const row = element("li", { class: "bar", title: says }, [name, track, number]);
  row.dataset.statistic = id;
  return { row, fill, number };
}

/**
 * @param {boolean} pooled
 * @param {boolean} causal
 * @param {boolean} named  the page has names of heads
 * @param {string} shared  which heads share keys and values
 */
function createModelLegend(pooled, causal, named, shared) {
  const ramp = createRamp();
  const sentences = [
    "Rows of a square are the tokens that look, from the first down; columns are the tokens that are looked at.",
    pooled ? "The text has more tokens than a square has cells: each shows the largest weight it covers." : "",
    causal ? "This model reads in one direction: nothing stands above the diagonal." : "",
    "A marked head spends at least half of its attention as the pattern says; a broad one has at least 80\u202f% of the largest possible entropy.",
    named ? "What a head is known for was found over many texts, before this page was made; here the number is its mean there." : "",
    shared && `${shared} A bracket above them joins such heads.`,
  ];
  const root = legendOf([...ramp.parts, ...sentences], KEYS);
  return {
    root,
    /** @param {string} ground @param {"light" | "dark"} theme */
    color(ground, theme) {
      const [from, to] = [channels(ground), channels(headColor(0, theme))];
      const colors = `linear-gradient(90deg, rgb(${from.join(",")}), rgb(${to.join(",")}))`;
      ramp.show(colors, ["0", "25\u202f%", "100\u202f%"]);
    },
  };
}

const PATTERNS = STATISTICS.filter(({ mark }) => mark !== null);

/** @param {Store} store @param {Measures} measures @param {Named[]} named */
function createModelControls(store, measures, named) {
  const options = STATISTICS.map(({ id, label }) => /** @type {[string, string]} */ ([id, label]));
  const order = menu("Order of the heads", [["", "as in the model"], ...options], (sort) => store.set({ sort }));
  const patterns = PATTERNS.map(({ id, label, says }) => ({ id, label, title: `${label}: ${says}` }));
  const marks = segments([{ id: "", label: "none", title: "No heads marked" }, ...patterns], (mark) => store.set({ mark }));
  const known = named.map(({ name, label, says }) => ({ id: `named.${name}`, label, title: says && `Heads that look at ${says}, over many texts` }));
  const names = segments(known, (mark) => store.set({ mark: store.get().mark === mark ? "" : mark }));
  const [found, foundNamed] = [0, 1].map(() => element("output", { class: "model-found" }));
  const root = element("div", { class: "model-controls" }, [
    group("Order by", [element("div", { class: "stepper" }, [order])]),
    group("Mark heads that look at", [marks.root, found]),
    ...(known.length ? [group("Mark heads known for", [names.root, foundNamed])] : []),
  ]);
  return {
    root,
    /** @param {Marks} heads */
    update({ any, has }) {
      const { sort, mark } = store.get();
      order.value = sort;
      marks.show(mark);
      names.show(mark);
      const ofNamed = known.some(({ id }) => id === mark);
      const count = any ? countOf(measures.total, has) : textOf(mark, sort, measures);
      found.textContent = ofNamed ? "" : count;
      foundNamed.textContent = ofNamed ? count : "";
    },
  };
}

/** @param {number} total @param {(place: number) => boolean} has */
function countOf(total, has) {
  let count = 0;
  for (let place = 0; place < total; place += 1) count += Number(has(place));
  return `${count} of ${total}`;
}

/** @param {string} mark @param {string} sort @param {Measures} measures */
function textOf(mark, sort, measures) {
  if (!mark && !sort) return "";
  if (!measures.possible) return "The page does not hold the weights to measure this.";
  return measures.finished ? "" : "measuring…";
}
