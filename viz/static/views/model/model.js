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
 * @import { Grid } from "../../marks/grid.js"
 * @import { Marks } from "./paint.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { aboutTokens, hasLayer, hasThumbnails, measureHead, STATISTICS, thumbnailsOf, written } from "../../core/data/statistics.js";
import { grouping, headsNamed, sharing } from "../../core/data/sharing.js";
import { cssColors, penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { group, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { running } from "../../core/text/text.js";
import { createRamp, legendOf } from "../../marks/cards.js";
import { cornerOf, heightOf, layOut, placeAt } from "../../marks/grid.js";
import { inksOf, modelFigure, paintTiles, thumbPainter } from "./paint.js";

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

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
    this.thumbnails = /** @type {Thumbnails | null} */ (null);
    this.grid = /** @type {Grid | null} */ (null);
    this.pointed = -1;
    this.cursor = -1;
    this.painted = "";
    this.tiles = element("div", { class: "model-tiles" });
    this.hover = element("div", { class: "model-frame" });
    this.chosen = element("div", { class: "model-frame chosen" });
    this.board = element("div", { class: "model-board", tabindex: "0", role: "application" }, [this.tiles, this.hover, this.chosen]);
    this.controls = createModelControls(example.header.patterns ?? [], (mark) => store.set({ mark }));
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
  }

  says() {
    return [`${this.nLayers * this.nHeads} heads: each is a picture of where every token looks, a row a token.`];
  }

  /** @param {number} layer @param {number} head  numbers in the model */
  placeOf(layer, head) {
    return this.example.layers.indexOf(layer) * this.nHeads + this.example.heads.indexOf(head);
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
    return placeAt(this.grid, clientX - box.left, clientY - box.top);
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
    this.move(step);
    return true;
  }

  /** @param {[number, number]} step */
  move([across, down]) {
    const { cursor, nHeads } = this;
    const to = cursor < 0 ? 0 : cursor + across + down * nHeads;
    const sameRow = !across || Math.floor(to / nHeads) === Math.floor(cursor / nHeads);
    if (cursor >= 0 && (to < 0 || to >= this.nLayers * nHeads || !sameRow)) return;
    this.cursor = to;
    this.pointed = -1;
    this.show();
    this.chosen.scrollIntoView({ block: "nearest" });
  }

  /** What is marked: whether a head is, and its score. @returns {Marks} */
  marks() {
    const named = headsNamed(this.example, this.store.get().mark);
    if (!named) return { any: false, has: () => true, score: () => NaN };
    return { any: true, has: (place) => named.has(place), score: (place) => named.get(place) ?? NaN };
  }

  paint() {
    if (!this.thumbnails || !this.root.isConnected) return;
    const { mark } = this.store.get();
    const theme = this.theme();
    const marks = this.marks();
    const width = this.board.clientWidth;
    this.controls.show(mark);
    const wanted = [width, devicePixelRatio, theme, mark].join(" ");
    if (wanted !== this.painted) {
      this.painted = wanted;
      this.grid = layOut(width, this.nLayers, this.nHeads);
      const { left, top, pitch, side, columns } = this.grid;
      this.board.dataset.grid = [left, top, pitch, side, columns].join(" ");
      this.board.style.height = `${heightOf(this.grid)}px`;
      paintTiles(this.tiles, { ...this, thumbnails: this.thumbnails, grid: this.grid, theme, marks, ...cssColors(this.root) });
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
    const { sizes } = this;
    const { ground, paper } = colors;
    this.card.show({ place, layer, head, color: headColor(head, theme), ground, paper, thumbnails, sizes });
    void this.measure(place);
    return undefined;
  }

  /** The statistics of a head; NaN where the page does not hold its weights. @param {number} place @returns {Promise<number[]>} */
  async statistics(place) {
    const [layer, head] = this.numbers(place);
    if (!hasLayer(this.example, layer)) return STATISTICS.map(() => NaN);
    const { window } = this.example.looking(layer);
    return measureHead(await this.example.head(layer, head), { ...aboutTokens(this.example), window });
  }

  /** Writes the statistics of a head on the card, if it still shows that head. @param {number} place */
  async measure(place) {
    const numbers = await this.statistics(place);
    if (place === (this.pointed < 0 ? this.cursor : this.pointed)) this.card.write(numbers);
  }

  async figure() {
    this.thumbnails ??= await thumbnailsOf(this.example);
    const places = Array.from({ length: this.nLayers * this.nHeads }, (_, place) => place);
    const numbers = await Promise.all(places.map((place) => this.statistics(place)));
    const look = { theme: this.theme(), marks: this.marks(), ...cssColors(this.root) };
    return modelFigure({ ...this, ...look, thumbnails: this.thumbnails }, numbers);
  }
}

/** @param {HTMLElement} made @param {Grid} grid @param {number} place */
function frame(made, grid, place) {
  made.hidden = place < 0;
  if (place < 0) return;
  const [left, top] = cornerOf(grid, place);
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
    this.color = "";
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
   * @param {null | {place: number, layer: number, head: number, color: string,
   *   ground: string, paper: string, thumbnails: Thumbnails,
   *   sizes: {nQueries: number, nKeys: number, causal: boolean}}} head
   */
  show(head) {
    this.root.dataset.shows = head ? "head" : "hint";
    this.hint.hidden = head !== null;
    for (const part of [this.where, this.title, this.body, this.sharing, this.open]) part.hidden = head === null;
    if (!head) return;
    this.title.textContent = `Layer ${head.layer}, head ${head.head}`;
    this.sharing.textContent = this.shared(head.head);
    this.paint(head);
    this.color = head.color;
    this.write(STATISTICS.map(() => NaN));
  }

  /** @param {number[]} numbers  in the order of STATISTICS */
  write(numbers) {
    this.rows.forEach(({ fill, number }, i) => {
      const value = numbers[i];
      number.textContent = written(STATISTICS[i], value);
      number.value = Number.isNaN(value) ? "" : String(value);
      if (!fill) return;
      fill.style.width = `${Number.isNaN(value) ? 0 : Math.min(value, 1) * 100}%`;
      fill.style.backgroundColor = this.color;
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

/** Marks for heads that were named before; nothing where none were. @param {Named[]} named @param {(mark: string) => void} choose */
function createModelControls(named, choose) {
  const known = named.map(({ name, label, says }) => ({ id: `named.${name}`, label, title: says && `Heads that look at ${says}, over many texts` }));
  const made = segments([{ id: "", label: "none", title: "No heads marked" }, ...known], choose);
  return { root: element("div", { class: "model-controls" }, known.length ? [group("Mark heads known for", [made.root])] : []), show: made.show };
}
