/**
 * The map: one head's weights as a picture of points, to zoom into, with what each token
 * receives along the edge.
 *
 * Two canvases lie on one another. The lower has the weights and is painted when head, window or
 * colours change; the upper has the lines at the pointer and is painted on each of its moves.
 *
 * @typedef {{query: number, key: number}} Cell
 * @typedef {import("../../core/data/data.js").Tokens} Tokens
 */

import { hasLayer } from "../../core/data/measures.js";
import { sentenceOfHead } from "../../core/data/sentence.js";
import { penOf } from "../../core/draw/canvas.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { element } from "../../core/draw/dom.js";
import { currentHead } from "../../core/state/state.js";
import { inside, isWhole, whole, zoomed } from "../../core/state/window.js";
import { running } from "../../core/text/text.js";
import { createMapLegend, showCell, showMapHint } from "./card.js";
import { mapFigure } from "./figure.js";
import { handOf, listenToHand } from "./hand.js";
import { mapKey } from "./keys.js";
import { paintOverlay } from "./overlay.js";
import { canvasPen, labelOf, longestLabel, paintAround, paintCells, shortenTo } from "./paint.js";
import { cellAt, frameFor, weightsOf } from "./plot.js";
import { createMapTools } from "./tools.js";

/** A step of the keyboard and of the buttons. */
const ZOOM = 0.7;

export class MapView {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor({ example, store, limits, theme }) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.themeNow = theme;
    this.sizes = { nQueries: example.tokens.text.length, nKeys: example.keyTokens.text.length, causal: example.causal };
    this.cells = element("canvas", { class: "map-cells" });
    this.over = element("canvas", { class: "map-over", "aria-hidden": "true" });
    this.cells.setAttribute("role", "img");
    this.scratch = element("canvas");
    this.pen = penOf(this.cells);
    this.overPen = penOf(this.over);
    this.surface = element("div", { class: "map-surface", tabindex: "0" }, [this.cells, this.over]);
    this.surface.setAttribute("aria-label", "Map of weights; plus and minus zoom, arrow keys move");
    this.tools = createMapTools({
      nearer: () => this.zoomBy(ZOOM),
      further: () => this.zoomBy(1 / ZOOM),
      all: () => void this.see(null),
    });
    this.empty = element("p", { class: "empty", role: "status" });
    this.board = element("div", { class: "map-board" }, [this.tools.root, this.surface]);
    this.root = element("div", { class: "map-view" }, [this.empty, this.board]);
    this.card = element("section", { class: "details", "aria-live": "polite" });
    this.card.setAttribute("aria-label", "One weight in numbers");
    this.legend = createMapLegend(store, example.causal);
    this.side = [this.card, this.legend.root];
    this.weights = /** @type {import("./plot.js").Weights | null} */ (null);
    this.frame = /** @type {import("./plot.js").Frame | null} */ (null);
    /** @type {import("./card.js").Reading["source"]} */
    this.source = "codes";
    this.pointed = /** @type {Cell | null} */ (null);
    this.shownHead = "";
    this.painted = "";
    this.room = 0;
    /** @type {Map<string, string>} */
    this.labels = new Map();
    listenToHand(this.surface, handOf(this));
    new ResizeObserver(() => this.resized()).observe(this.board);
  }

  /** What is seen, which another text's window may have to be fitted to. */
  window() {
    return inside(this.store.get().window ?? whole(this.sizes), this.sizes);
  }

  /**
   * Shows another part of the map.
   *
   * @param {import("../../core/state/window.js").Window | null} window
   * @returns {boolean}  whether that is a change
   */
  see(window) {
    const next = window === null || isWhole(window, this.sizes) ? null : window;
    const before = this.store.get().window;
    if (String(next) === String(before)) return false;
    this.pointed = null;
    this.store.set({ window: next });
    return true;
  }

  /** @param {number} factor */
  zoomBy(factor) {
    const { query, key } = this.store.get();
    const [top, bottom, left, right] = this.window();
    const within = (/** @type {number | null} */ at, /** @type {number} */ low, /** @type {number} */ high) =>
      at !== null && at >= low && at < high ? at + 0.5 : (low + high) / 2;
    this.see(zoomed(this.window(), factor, within(query, top, bottom), within(key, left, right), this.sizes));
  }

  /** @param {Cell | null} cell */
  point(cell) {
    if (cell?.query === this.pointed?.query && cell?.key === this.pointed?.key) return;
    this.pointed = cell;
    this.paintOver();
  }

  /** @param {Cell | null} cell */
  keep(cell) {
    const { query, key } = this.store.get();
    const again = cell !== null && cell.query === query && cell.key === key;
    this.store.set(cell && !again ? { ...cell, anchor: "query" } : { query: null, key: null });
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  cellAt(x, y) {
    return this.weights && this.frame ? cellAt(this.weights, this.window(), this.frame, x, y) : null;
  }

  /** @param {KeyboardEvent} event */
  keydown(event) {
    return event.composedPath()[0] instanceof HTMLButtonElement ? false : mapKey(this, event.key);
  }

  async update() {
    const state = this.store.get();
    const [layer, head] = [state.layer, currentHead(state, this.limits)];
    const missing = !hasLayer(this.example, layer) && !this.example.entry("query", layer, head);
    this.empty.textContent = missing ? `The page does not hold the weights of layer ${layer}, head ${head}.` : "";
    this.board.hidden = missing;
    if (missing) return;
    const name = `${layer} ${head}`;
    if (name !== this.shownHead) {
      const probs = await this.example.head(layer, head);
      const now = this.store.get();
      // Another head may have been asked for while this one was computed.
      if (layer !== now.layer || head !== currentHead(now, this.limits)) return;
      this.shownHead = name;
      this.weights = weightsOf(probs, this.sizes);
      const vectors = this.example.header.edited ? null : await this.example.vectors(layer, head);
      this.source = !vectors ? "codes" : vectors.exact ? "single" : vectors.within === null ? "half" : "bytes";
    }
    this.paint();
  }

  says() {
    const state = this.store.get();
    return this.weights ? sentenceOfHead(this.example, { ...state, head: currentHead(state, this.limits) }, this.weights.probs) : [];
  }

  resized() {
    if (this.board.clientWidth !== this.room) this.paint();
  }

  paint() {
    if (!this.weights || !this.root.isConnected || !this.board.clientWidth) return;
    const { window, scale } = this.store.get();
    const theme = this.themeNow();
    const wanted = [this.shownHead, window, scale, theme, this.board.clientWidth, devicePixelRatio].join(" ");
    if (wanted !== this.painted) {
      this.painted = wanted;
      this.frame = this.measure();
      this.paintMap(this.plot(this.weights, this.frame), theme, scale);
      this.tools.update(this.window(), window === null);
      this.surface.classList.toggle("zoomed", window !== null);
      this.root.dataset.drawn = this.shownHead;
    }
    this.legend.update(theme, this.weights.largest);
    this.paintOver();
  }

  /** Finds the room for labels, and makes the canvases fit. */
  measure() {
    this.room = this.board.clientWidth;
    this.pen.font = `12px ${cssColors(this.root).font}`;
    const longest = longestLabel(this.pen, [this.example.tokens, this.example.keyTokens]);
    const frame = frameFor(this.room, longest, this.sizes);
    const scale = devicePixelRatio || 1;
    for (const canvas of [this.cells, this.over]) {
      canvas.width = Math.round(frame.total * scale);
      canvas.height = Math.round(frame.tall * scale);
      canvas.style.width = `${frame.total}px`;
      canvas.style.height = `${frame.tall}px`;
      canvas.getContext("2d")?.setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.surface.style.width = `${frame.total}px`;
    this.surface.style.height = `${frame.tall}px`;
    this.surface.dataset.frame = [frame.left, frame.top, frame.width, frame.height].join(" ");
    this.labels.clear();
    return frame;
  }

  /**
   * A token's name, cut to the room beside the map.
   *
   * @param {Tokens} tokens
   * @param {number} index
   * @param {number} room
   */
  label(tokens, index, room) {
    const place = `${tokens === this.example.tokens ? "query" : "key"} ${index}`;
    const text = this.labels.get(place) ?? shortenTo(this.pen, labelOf(tokens, index), room);
    this.labels.set(place, text);
    return text;
  }

  /**
   * @param {import("./plot.js").Weights} weights
   * @param {import("./plot.js").Frame} frame
   */
  plot(weights, frame) {
    const { tokens, keyTokens } = this.example;
    const colors = cssColors(this.root);
    this.pen.font = `12px ${colors.font}`;
    return {
      frame,
      window: this.window(),
      weights,
      colors,
      queryLabel: (/** @type {number} */ index) => this.label(tokens, index, frame.left - 14),
      keyLabel: (/** @type {number} */ index) => this.label(keyTokens, index, frame.left - 14),
    };
  }

  /**
   * @param {ReturnType<MapView["plot"]>} plot
   * @param {"light" | "dark"} theme
   * @param {"root" | "linear"} scale
   */
  paintMap(plot, theme, scale) {
    const { frame, window, weights, colors } = plot;
    const dots = devicePixelRatio || 1;
    const [width, height] = [Math.round(frame.width * dots), Math.round(frame.height * dots)];
    paintCells(this.scratch, width, height, weights, window, { theme, scale, paper: colors.paper });
    this.pen.clearRect(0, 0, frame.total, frame.tall);
    const pen = canvasPen(this.pen, colors.font);
    pen.image(frame.left, frame.top, frame.width, frame.height, this.scratch);
    paintAround(pen, plot);
    this.cells.setAttribute("aria-label", `Weights of layer ${this.store.get().layer}, head ${this.shownHead.split(" ")[1]}`);
  }

  /** The tokens that are kept, as far as this text has them: another beside it may be longer. */
  kept() {
    const { query, key } = this.store.get();
    const { nQueries, nKeys } = this.sizes;
    return {
      query: query !== null && query < nQueries ? query : null,
      key: key !== null && key < nKeys ? key : null,
    };
  }

  /** Lines, names and the card: what changes with the pointer. */
  paintOver() {
    const { weights, frame, example } = this;
    if (!weights || !frame) return;
    const { query, key } = this.kept();
    paintOverlay(this.overPen, this.plot(weights, frame), { query, key }, this.pointed);
    const [layer, head] = this.shownHead.split(" ");
    const name = example.header.name ? `${running(example.header.name)} · ` : "";
    const where = `${name}Layer ${layer}, head ${head}`;
    const cell = this.pointed ?? (query !== null && key !== null ? { query, key } : null);
    if (!cell) return showMapHint(this.card, where);
    const weight = weights.probs[cell.query * weights.nKeys + cell.key];
    const source = weights.causal && cell.key > cell.query ? "none" : this.source;
    showCell(this.card, where, example, cell, { weight, received: weights.received[cell.key], source });
    return undefined;
  }

  async figure() {
    await this.update();
    if (!this.weights || !this.frame) throw new Error("the weights of this head are not on the page");
    return mapFigure(this.plot(this.weights, this.frame), {
      name: `attention-map-layer-${this.shownHead.replace(" ", "-head-")}`,
      theme: this.themeNow(),
      scale: this.store.get().scale,
      tokens: this.example.tokens,
      keyTokens: this.example.keyTokens,
    });
  }
}

/** @type {import("../../core/frame/kinds.js").Kind} */
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
