/**
 * The model view: every head of every layer as a small picture; a click opens one.
 *
 * @import { Thumbnails } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { hasLayer, thumbnailsOf } from "../../core/data/thumbnails.js";
import { placesIn, sentenceOfHead, wordsOf } from "../../core/data/sentence.js";
import { grouping, sharing } from "../../core/data/sharing.js";
import { cssColors, penOf } from "../../core/draw/canvas.js";
import { channels, headColor, pixelOf, pixelsOf } from "../../core/draw/colors.js";
import { button, walk } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { running } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { createRamp, legendOf } from "../../marks/cards.js";

class ModelView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example } = stage;
    this.nLayers = example.layers.length;
    this.nHeads = example.heads.length;
    this.thumbnails = /** @type {Thumbnails | null} */ (null);
    this.pointed = this.cursor = -1;
    this.painted = "";
    this.pictures = Array.from({ length: this.nLayers * this.nHeads }, (_, place) => this.picture(place));
    this.board = element("div", { class: "model-board", role: "group" }, [...this.names(), ...example.layers.flatMap((layer, i) => [
      element("span", { class: "model-layer", "aria-hidden": "true" }, [String(layer)]), ...this.pictures.slice(i * this.nHeads, (i + 1) * this.nHeads).map(({ root }) => root),
    ])]);
    this.board.style.setProperty("--heads", String(this.nHeads));
    this.board.setAttribute("aria-label", `${this.nLayers} layers of ${this.nHeads} heads, a small picture each. Arrow keys move, Enter opens a head.`);
    this.root = element("div", { class: "model-view" }, [this.board]);
    this.card = new HeadCard(example.header.name && running(example.header.name), (head) => sharing(example, head));
    const longest = Math.max(example.tokens.text.length, example.keyTokens.text.length);
    this.legend = createModelLegend(longest > 64, example.causal, grouping(example));
    this.side = [this.card.root, this.legend.root];
    this.listen();
  }

  /** @param {number} place */
  picture(place) {
    const [layer, head] = this.numbers(place);
    const canvas = element("canvas");
    const root = button(canvas, () => {}, { class: "model-head", "aria-label": `Layer ${layer}, head ${head}`, tabindex: place ? "-1" : "0", "data-place": String(place) });
    return { root, canvas };
  }

  /** The numbers of the heads with a stroke of their colour, and brackets over heads that share keys and values. */
  names() {
    const { heads, keyHeads } = this.example;
    this.strokes = heads.map(() => element("span", { class: "model-stroke" }));
    const names = heads.map((head, i) => element("span", { class: "model-name", "aria-hidden": "true" }, [String(head), /** @type {HTMLElement[]} */ (this.strokes)[i]]));
    const brackets = keyHeads.length === heads.length ? [] : keyHeads.map((own) => {
      const made = element("span", { class: "model-bracket" });
      const columns = heads.flatMap((head, i) => (this.example.keyHead(head) === own ? [i + 2] : []));
      made.style.gridColumn = `${columns[0]} / span ${columns.length}`;
      return made;
    });
    return [element("span", { class: "model-corner", "aria-hidden": "true" }, ["layer, head"]), ...names, ...brackets];
  }

  async update() {
    this.thumbnails = await thumbnailsOf(this.example);
    const { layer, heads } = this.store.get();
    if (this.cursor < 0 && heads.length === 1) this.cursor = this.placeOf(layer, heads[0]);
    if (this.thumbnails && this.theme() !== this.painted) this.paint(this.thumbnails);
    this.painted = this.theme();
    this.root.dataset.drawn = "true";
    this.show();
  }

  says() {
    return [`${this.nLayers * this.nHeads} heads: each is a picture of where every token looks, a row a token.`];
  }

  /** @param {number} layer @param {number} head  numbers in the model */
  placeOf(layer, head) {
    return this.example.layers.indexOf(layer) * this.nHeads + this.example.heads.indexOf(head);
  }

  listen() {
    const placed = (/** @type {EventTarget | null} */ target) => Number((target instanceof Element ? target.closest("button")?.dataset.place : null) ?? -1);
    const point = (/** @type {number} */ place) => {
      if (place === this.pointed) return;
      this.pointed = place;
      this.show();
    };
    this.board.addEventListener("pointerover", (event) => event.pointerType !== "touch" && point(placed(event.target)));
    this.board.addEventListener("pointerleave", () => point(-1));
    this.board.addEventListener("click", (event) => {
      const place = placed(event.target);
      // A finger cannot point first: its first touch shows a head, its second opens it.
      const first = event instanceof PointerEvent && event.pointerType === "touch" && place !== this.cursor;
      if (place < 0) return;
      this.cursor = place;
      if (first) return this.show();
      const [layer, head] = this.numbers(place);
      this.store.set({ view: "head", layer, heads: [head] });
    });
  }

  /** @param {number} place @returns {[number, number]}  layer and head as the model numbers them */
  numbers(place) {
    const { layers, heads } = this.example;
    return [layers[Math.floor(place / this.nHeads)], heads[place % this.nHeads]];
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    const { key, target } = event;
    const inside = target instanceof Node && this.board.contains(target);
    if (target instanceof HTMLButtonElement && !inside) return false;
    if (key === "Escape" && this.cursor >= 0) {
      this.pictures[this.cursor].root.blur();
      this.cursor = -1;
      this.show();
      return true;
    }
    const roots = this.pictures.map(({ root }) => root);
    const began = !inside && key.startsWith("Arrow");
    if (began) roots[Math.max(this.cursor, 0)].focus();
    if (!began && !walk(event, this.example.layers.map((_, i) => roots.slice(i * this.nHeads, (i + 1) * this.nHeads)))) return false;
    this.cursor = roots.findIndex((root) => root.matches(":focus"));
    this.pointed = -1;
    this.show();
    return true;
  }

  /** @param {Thumbnails} thumbnails */
  paint(thumbnails) {
    const theme = this.theme();
    const { ground, paper } = cssColors(this.root);
    const colors = this.example.heads.map((head) => headColor(head, theme));
    this.strokes?.forEach((stroke, i) => (stroke.style.background = colors[i]));
    this.pictures.forEach(({ canvas }, place) => paintHead(canvas, this.example, thumbnails, place, colors[place % this.nHeads], { ground, paper }));
    this.legend.color(ground, theme);
  }

  /** What changes while the pointer moves: the frame and the card. */
  show() {
    if (!this.thumbnails) return;
    this.pictures.forEach(({ root }, i) => root.classList.toggle("chosen", i === this.cursor));
    const place = this.pointed < 0 ? this.cursor : this.pointed;
    if (place < 0) return this.card.hide();
    const [layer, head] = this.numbers(place);
    this.card.show(layer, head, this.pictures[place].canvas);
    void this.tell(place);
    return undefined;
  }

  /** Says on the card where a head looks, if it still shows that head and the page holds its weights. @param {number} place */
  async tell(place) {
    const [layer, head] = this.numbers(place);
    if (!hasLayer(this.example, layer)) return;
    const parts = sentenceOfHead(this.example, { layer, head, query: null, key: null }, await this.example.head(layer, head));
    if (place === (this.pointed < 0 ? this.cursor : this.pointed)) this.card.says.textContent = wordsOf(parts);
  }

  async figure() {
    await this.update();
    const { example } = this;
    const looks = await Promise.all(example.layers.filter((layer) => hasLayer(example, layer)).map(async (layer) => {
      return placesIn(example, await example.layer(layer)).map(({ id, by, share }, i) => [layer, example.heads[i], id, by, share]);
    }));
    return pageFigure(this.board, example.header.texts.map(running).join(" / "), {
      name: "attention-model",
      columns: ["layer", "head", "looks at", "offset", "share"],
      rows: () => looks.flat(),
    });
  }
}

/** @type {Kind} */
export const modelKind = {
  id: "model",
  label: "Model",
  title: "Every head of every layer as a small picture",
  missing: (example) =>
    example.entry("thumbnails", null) || example.layers.every((layer) => hasLayer(example, layer)) ? "" : "The page holds no attention of all heads.",
  oneHead: false,
  controls: [],
  create: (stage) => new ModelView(stage),
};

/** From so many cells a side on a picture may have fewer pixels than cells. */
const MANY = 40;

/**
 * A pixel for each cell of a head's picture, which the style stretches.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {import("../../core/data/example.js").Example} example
 * @param {Thumbnails} thumbnails
 * @param {number} place
 * @param {string} color  of the weight 1: the root of a weight is told, so that small ones can be seen
 * @param {{ground: string, paper: string}} sheet
 */
function paintHead(canvas, { tokens, keyTokens, causal }, { rows, columns, codes }, place, color, { ground, paper }) {
  const [inks, blank] = [pixelsOf([ground, color], 256), pixelOf(channels(paper))];
  const [nQueries, nKeys] = [tokens.text.length, keyTokens.text.length];
  Object.assign(canvas, { width: columns, height: rows });
  canvas.classList.toggle("fine", Math.max(rows, columns) > MANY);
  const pen = penOf(canvas);
  const image = pen.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0; row < rows; row += 1) {
    // Of a causal model, the last column of the row that a query of it may look at.
    const query = Math.max(row + 1, Math.floor(((row + 1) * nQueries) / rows)) - 1;
    const end = causal ? Math.ceil(((query + 1) * columns) / nKeys) : columns;
    for (let column = 0; column < columns; column += 1) pixels[row * columns + column] = column < end ? inks[codes[(place * rows + row) * columns + column]] : blank;
  }
  pen.putImageData(image, 0, 0);
}

class HeadCard {
  /**
   * @param {string} name  of the text, where there are several
   * @param {(head: number) => string} shared  which heads share its keys and values
   */
  constructor(name, shared) {
    this.where = name ? `Attention of ${name}` : "Attention of";
    this.shared = shared;
    this.canvas = element("canvas", { class: "model-large", "aria-hidden": "true" });
    this.says = element("p");
    this.root = element("div", { role: "group", class: "details model-card", "aria-live": "polite", "aria-label": "One head" });
    this.hide();
  }

  hide() {
    this.root.replaceChildren(hint("Each square is one head. Point at one to see it larger and where it looks; click it to open it."));
  }

  /** @param {number} layer @param {number} head @param {HTMLCanvasElement} picture */
  show(layer, head, picture) {
    this.says.textContent = "";
    const where = element("p", { class: "where" }, [this.where]);
    const title = element("h2", {}, [`Layer ${layer}, head ${head}`]);
    this.root.replaceChildren(where, title, this.canvas, this.says, hint(this.shared(head)), hint("Click to open this head."));
    const { width, height } = picture;
    Object.assign(this.canvas, { width, height });
    penOf(this.canvas).drawImage(picture, 0, 0);
  }
}

/** @param {string} text */
const hint = (text) => element("p", { class: "hint" }, [text]);

/**
 * @param {boolean} pooled
 * @param {boolean} causal
 * @param {string} shared  which heads share keys and values
 */
function createModelLegend(pooled, causal, shared) {
  const ramp = createRamp();
  const sentences = [
    "Rows of a square are the tokens that look, from the first down; columns are the tokens that are looked at.",
    pooled ? "The text has more tokens than a square has cells: each shows the largest weight it covers." : "",
    causal ? "This model reads in one direction: nothing stands above the diagonal." : "",
    shared && `${shared} A bracket above them joins such heads.`,
  ];
  const root = legendOf([...ramp.parts, ...sentences], { "← ↑ → ↓": translated`move`, Enter: translated`open` });
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
