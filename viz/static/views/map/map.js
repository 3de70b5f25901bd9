/**
 * The map: one head's weights as a picture of points, with what each token receives below it. Zoomed in, it shows what
 * lies around the kept cell.
 *
 * @typedef {{query: number, key: number}} Cell
 *
 * @import { Vectors } from "../../core/data/example.js"
 * @import { Pen } from "../../core/export/figure.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Frame, Plot, Weights } from "./plot.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { hasLayer } from "../../core/data/thumbnails.js";
import { sentenceOfHead } from "../../core/data/sentence.js";
import { cssColors, penOf } from "../../core/draw/canvas.js";
import { button, STEPS } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { CanvasPen } from "../../core/export/pens.js";
import { MOST_ZOOM } from "../../core/state/state.js";
import { share } from "../../core/text/numbers.js";
import { percent, running } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { boundsText, createRamp, facts, large, legendOf, WHY } from "../../marks/cards.js";
import { cellAt, frameFor, paintBand, paintCells, paintMap, SCALES, weightsOf } from "./plot.js";

export class MapView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example } = stage;
    this.sizes = { nQueries: example.tokens.text.length, nKeys: example.keyTokens.text.length, causal: example.causal };
    this.canvas = element("canvas", { class: "map-cells", role: "img" });
    this.pen = penOf(this.canvas);
    this.cells = element("canvas");
    this.surface = element("div", { class: "map-surface", tabindex: "0", role: "group", "aria-label": "Map of weights" }, [this.canvas]);
    this.out = button("−", () => this.zoomBy(-1), { class: "step", "aria-label": "Zoom out" });
    this.nearer = button("+", () => this.zoomBy(1), { class: "step", "aria-label": "Zoom in" });
    this.empty = element("p", { class: "empty", role: "status" });
    this.board = element("div", { class: "map-board" }, [element("div", { class: "map-tools stepper" }, [this.out, this.nearer]), this.surface]);
    this.root = element("div", { class: "map-view" }, [this.empty, this.board]);
    this.card = element("div", { role: "group", class: "details", "aria-live": "polite", "aria-label": "One weight in numbers" });
    this.legend = createMapLegend(example.causal);
    this.side = [this.card, this.legend.root];
    this.weights = /** @type {Weights | null} */ (null);
    this.frame = /** @type {Frame | null} */ (null);
    /** Where the weights come from: query and key, as exact as these are. @type {Vectors | null} */
    this.vectors = null;
    this.pointed = /** @type {Cell | null} */ (null);
    this.shownHead = this.painted = "";
    this.listen();
  }

  listen() {
    const at = (/** @type {MouseEvent} */ { offsetX, offsetY }) => (this.plot() ? cellAt(/** @type {Plot} */ (this.plot()), offsetX, offsetY) : null);
    this.canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.point(at(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.keep(at(event)));
    new ResizeObserver(() => this.paint()).observe(this.board);
  }

  /** The tokens that are seen: all, or those around the kept cell. @returns {Plot["window"]} */
  window() {
    const { zoom, query, key } = this.store.get();
    const { nQueries, nKeys } = this.sizes;
    const part = (/** @type {number | null} */ kept, /** @type {number} */ size) => {
      const length = size / 2 ** zoom;
      const first = Math.min(Math.max((kept === null ? size / 2 : kept + 0.5) - length / 2, 0), size - length);
      return [first, first + length];
    };
    const [[top, bottom], [left, right]] = [part(query, nQueries), part(key, nKeys)];
    return [top, bottom, left, right];
  }

  /** Makes cells twice or half as long. @param {number} by */
  zoomBy(by) {
    this.store.set({ zoom: Math.min(Math.max(this.store.get().zoom + by, 0), MOST_ZOOM) });
  }

  /** @param {Cell | null} cell */
  point(cell) {
    if (cell?.query === this.pointed?.query && cell?.key === this.pointed?.key) return;
    this.pointed = cell;
    this.paint();
  }

  /** @param {Cell | null} cell */
  keep(cell) {
    const { query, key } = this.store.get();
    const again = cell !== null && cell.query === query && cell.key === key;
    this.store.set(cell && !again ? { ...cell, anchor: "query" } : { query: null, key: null });
  }

  /** Goes from cell to cell. @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    const { key, target } = event;
    if (target instanceof HTMLButtonElement && key !== "Escape") return false;
    if (key === "Enter") this.keepLargest();
    return key === "Enter" || super.keydown(event) || (key in STEPS && this.arrow(STEPS[key]));
  }

  /** Moves the kept cell; without one the arrows are the page's. @param {[number, number]} step */
  arrow([down, across]) {
    const { query, key } = this.store.get();
    if (query === null || key === null) return false;
    const next = { query: query + down, key: key + across };
    const { nQueries, nKeys } = this.sizes;
    if (next.query < 0 || next.key < 0 || next.query >= nQueries || next.key >= nKeys) return true;
    this.pointed = null;
    this.store.set(next);
    return true;
  }

  keepLargest() {
    const { weights } = this;
    if (!weights) return;
    const best = weights.probs.indexOf(weights.largest);
    this.store.set({ query: Math.floor(best / weights.nKeys), key: best % weights.nKeys, anchor: "query" });
  }

  async update() {
    const asked = this.asked();
    const { layer, head } = asked;
    const missing = !hasLayer(this.example, layer) && !this.example.entry("query", layer, head);
    this.empty.textContent = missing ? `The page does not hold the weights of layer ${layer}, head ${head}.` : "";
    this.board.hidden = missing;
    if (missing) return;
    const name = `${layer} ${head}`;
    if (name !== this.shownHead) {
      const probs = await this.example.head(layer, head);
      if (!this.stillAsked(asked)) return;
      this.shownHead = name;
      this.weights = weightsOf(probs, this.sizes);
      this.vectors = this.example.header.edited ? null : await this.example.vectors(layer, head);
    }
    this.paint();
  }

  says() {
    return this.weights ? sentenceOfHead(this.example, { ...this.store.get(), ...this.asked() }, this.weights.probs) : [];
  }

  paint() {
    const room = this.board.clientWidth;
    if (!this.weights || !this.root.isConnected || !room) return;
    const { zoom } = this.store.get();
    const theme = this.theme();
    const dots = devicePixelRatio || 1;
    const sized = [room, dots, innerHeight].join(" ");
    if (sized !== this.surface.dataset.sized) this.fit(room, dots);
    this.surface.dataset.sized = sized;
    this.out.disabled = !zoom;
    this.nearer.disabled = zoom === MOST_ZOOM;
    const plot = /** @type {Plot} */ (this.plot());
    const { frame, window } = plot;
    const wanted = [this.shownHead, window, theme, sized].join(" ");
    if (wanted !== this.painted) paintCells(this.cells, Math.round(frame.width * dots), Math.round(frame.height * dots), plot, theme);
    this.painted = wanted;
    this.pen.clearRect(0, 0, frame.total, frame.tall);
    const pen = new CanvasPen(this.pen, dots);
    this.paintPlot(pen, plot);
    this.surface.dataset.window = window.join(" ");
    this.canvas.setAttribute("aria-label", `Weights of layer ${this.store.get().layer}, head ${this.shownHead.split(" ")[1]}`);
    this.legend.update(theme, this.weights.largest);
    this.tell();
    this.root.dataset.drawn = this.shownHead;
  }

  /** Cells, labels, and the tokens that are pointed at or kept. @param {Pen} pen @param {Plot} plot */
  paintPlot(pen, plot) {
    paintMap(pen, plot, this.cells);
    const kept = this.store.get();
    for (const side of /** @type {const} */ (["query", "key"])) {
      if (this.pointed) paintBand(pen, plot, side, this.pointed[side], false);
      if (kept[side] !== null) paintBand(pen, plot, side, kept[side], true);
    }
  }

  /** Makes the canvas fit the room. @param {number} room @param {number} dots  a CSS pixel */
  fit(room, dots) {
    this.pen.font = `12px ${cssColors(this.root).font}`;
    const frame = (this.frame = frameFor(this.pen, room, this.example.tokens, this.example.keyTokens));
    Object.assign(this.canvas, { width: Math.round(frame.total * dots), height: Math.round(frame.tall * dots) });
    Object.assign(this.canvas.style, { width: `${frame.total}px`, height: `${frame.tall}px` });
    this.pen.setTransform(dots, 0, 0, dots, 0, 0);
    this.surface.dataset.frame = [frame.left, frame.top, frame.width, frame.height].join(" ");
  }

  /** @returns {Plot | null} */
  plot() {
    const { weights, frame, example: { tokens, keyTokens } } = this;
    if (!weights || !frame) return null;
    return { frame, window: this.window(), weights, colors: cssColors(this.root), tokens, keyTokens };
  }

  /** The card: the cell that is pointed at or kept. */
  tell() {
    const { weights, example } = this;
    const { query, key } = this.store.get();
    const cell = this.pointed ?? (query !== null && key !== null ? { query, key } : null);
    const [layer, head] = this.shownHead.split(" ");
    const name = example.header.name ? `${running(example.header.name)} · ` : "";
    const where = element("p", { class: "where" }, [`${name}Layer ${layer}, head ${head}`]);
    if (!weights || !cell) {
      this.card.replaceChildren(where, element("p", { class: "hint" }, ["Point at a cell to read it. Click to keep its tokens."]));
      return;
    }
    const weight = weights.probs[cell.query * weights.nKeys + cell.key];
    this.card.replaceChildren(
      where,
      element("h2", {}, [tokenChip(example.tokens, cell.query), " looks at ", tokenChip(example.keyTokens, cell.key)]),
      large(weight, this.vectors ? share(weight) : percent(weight), weights.causal && cell.key > cell.query ? "a token cannot look ahead here" : precisionOf(this.vectors, weight)),
      ...(this.limits.views.includes("arithmetic") ? [button(WHY, () => this.store.set({ view: "arithmetic", level: "", ...cell, anchor: "query" }), { class: "quiet" })] : []),
      facts([
        ["query", `token ${cell.query}`],
        ["key", `token ${cell.key}`],
        ["received", `${weights.received[cell.key].toFixed(2)} from all tokens`],
      ]),
    );
  }

  /** What is seen of the map, and all its weights. */
  async figure() {
    await this.update();
    const plot = this.plot();
    if (!plot) throw new Error("the weights of this head are not on the page");
    const { weights: { probs, nQueries, nKeys, causal }, tokens, keyTokens } = plot;
    const table = {
      name: `attention-map-layer-${this.shownHead.replace(" ", "-head-")}`,
      columns: ["query", "query token", "key", "key token", "weight"],
      *rows() {
        for (let query = 0; query < nQueries; query += 1) {
          for (let key = 0; key < (causal ? query + 1 : nKeys); key += 1) yield [query, tokens.text[query], key, keyTokens.text[key], probs[query * nKeys + key]];
        }
      },
    };
    return pageFigure(this.surface, `Layer ${this.shownHead.replace(" ", ", head ")}`, table, new Map([[this.canvas, (pen) => this.paintPlot(pen, plot)]]));
  }
}

/** @type {Kind} */
export const mapKind = {
  id: "map",
  label: "Map",
  title: "One head as a heat map to zoom into, with what each token receives",
  missing: ({ header }) =>
    header.arrays.some(({ quantity }) => quantity === "probs" || quantity === "query") ? "" : "The page holds no weights of single heads.",
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new MapView(stage),
};

/** How near the model's a weight is. @param {Vectors | null} vectors  null: it is a code @param {number} weight */
function precisionOf(vectors, weight) {
  if (!vectors) return `rounded: ${boundsText(Math.round(255 * Math.sqrt(weight)))}`;
  const { exact, within } = vectors;
  return `${exact ? "exact, " : ""}from query and key${exact ? "" : within === null ? ", rounded to half precision" : ", a byte a number"}`;
}

/** @param {boolean} causal */
function createMapLegend(causal) {
  const ramp = createRamp("map-ramp");
  const sentences = [
    "A row is a token that looks, a column one that is looked at. Where a text is so long that a dot stands for several weights, it shows the largest of them.",
    "Below, how much attention each token receives from all tokens.",
    causal ? "This model reads in one direction: nothing exists above the diagonal, so nothing is drawn there." : "",
  ];
  const keys = { "← ↑ → ↓": translated`move`, Enter: "keep the largest", Esc: "let go" };
  return {
    root: legendOf([...ramp.parts, ...sentences], keys, "Weight"),
    /** @param {"light" | "dark"} theme @param {number} largest */
    update(theme, largest) {
      // Colours follow the square root, so that small weights can be told apart.
      ramp.show(`linear-gradient(90deg, ${SCALES[theme].join(", ")})`, [0, largest / 4, largest].map((weight) => percent(weight).replace(".0", "")));
    },
  };
}
