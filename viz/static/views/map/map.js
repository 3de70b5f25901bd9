/**
 * The map: one head's weights as a picture of points, to zoom into, with what each token
 * receives along the edge.
 *
 * Two canvases lie on one another. The lower has the weights and is painted when head, window or
 * colours change; the upper has the lines at the pointer and is painted on each of its moves.
 *
 * @typedef {{query: number, key: number}} Cell
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Store } from "../../core/state/state.js"
 * @import { Window } from "../../core/state/window.js"
 * @import { Frame, Weights } from "./plot.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { hasLayer } from "../../core/data/statistics.js";
import { sentenceOfHead } from "../../core/data/sentence.js";
import { cssColors, penOf } from "../../core/draw/canvas.js";
import { button, segments } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { CanvasPen } from "../../core/export/pens.js";
import { afterEscape } from "../../core/state/state.js";
import { holding, inside, isWhole, moved, whole, zoomed } from "../../core/state/window.js";
import { percent, running } from "../../core/text/text.js";
import { boundsText, createRamp, facts, large, legendOf } from "../../marks/cards.js";
import { cellAt, frameFor, gradientOf, labelOf, longestLabel, mapFigure, paintAround, paintCells, paintOverlay, shortenTo, weightsOf } from "./plot.js";

/** A step of the keyboard and of the buttons, and the part of the window that an arrow moves by. */
const ZOOM = 0.7;
const PART = 0.2;
/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class MapView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example, store } = stage;
    this.sizes = { nQueries: example.tokens.text.length, nKeys: example.keyTokens.text.length, causal: example.causal };
    this.cells = element("canvas", { class: "map-cells" });
    this.over = element("canvas", { class: "map-over", "aria-hidden": "true" });
    this.cells.setAttribute("role", "img");
    this.scratch = element("canvas");
    this.pen = penOf(this.cells);
    this.overPen = penOf(this.over);
    this.surface = element("div", { class: "map-surface", tabindex: "0" }, [this.cells, this.over]);
    this.surface.setAttribute("aria-label", "Map of weights; plus and minus zoom, arrow keys move");
    this.out = button("−", () => this.zoomBy(1 / ZOOM), { class: "step", "aria-label": "Zoom out" });
    const nearer = button("+", () => this.zoomBy(ZOOM), { class: "step", "aria-label": "Zoom in" });
    this.all = button("whole map", () => void this.see(null), { class: "quiet", "aria-label": "Show the whole map" });
    this.seen = element("output", { class: "map-seen" });
    const tools = element("div", { class: "map-tools" }, [element("div", { class: "stepper" }, [this.out, nearer]), this.seen, this.all]);
    this.empty = element("p", { class: "empty", role: "status" });
    this.board = element("div", { class: "map-board" }, [tools, this.surface]);
    this.root = element("div", { class: "map-view" }, [this.empty, this.board]);
    this.card = element("section", { class: "details", "aria-live": "polite" });
    this.card.setAttribute("aria-label", "One weight in numbers");
    this.legend = createMapLegend(store, example.causal);
    this.side = [this.card, this.legend.root];
    this.weights = /** @type {Weights | null} */ (null);
    this.frame = /** @type {Frame | null} */ (null);
    /** @type {Reading["source"]} */
    this.source = "codes";
    this.pointed = /** @type {Cell | null} */ (null);
    this.shownHead = "";
    this.painted = "";
    this.room = 0;
    /** @type {Map<string, string>} */
    this.labels = new Map();
    listenToHand(this);
    new ResizeObserver(() => this.resized()).observe(this.board);
  }

  /** What is seen, which another text's window may have to be fitted to. */
  window() {
    return inside(this.store.get().window ?? whole(this.sizes), this.sizes);
  }

  /** Shows another part of the map. @param {Window | null} window @returns {boolean}  whether that is a change */
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

  /** @param {number} x @param {number} y */
  cellAt(x, y) {
    return this.weights && this.frame ? cellAt(this.weights, this.window(), this.frame, x, y) : null;
  }

  /** Zooms about a point of the surface; whether that is a change. @param {{x: number, y: number}} point @param {number} factor */
  zoomAt({ x, y }, factor) {
    if (!this.frame) return false;
    const { left, top, width, height } = this.frame;
    const part = (/** @type {number} */ at, /** @type {number} */ length) => Math.min(Math.max(at / length, 0), 1);
    const [low, high, first, end] = this.window();
    return this.see(zoomed(this.window(), factor, low + part(y - top, height) * (high - low), first + part(x - left, width) * (end - first), this.sizes));
  }

  /** Moves what is seen. @param {number} across  CSS pixels @param {number} down */
  drag(across, down) {
    if (!this.frame) return;
    const [top, bottom, left, right] = this.window();
    this.see(moved(this.window(), (-down / this.frame.height) * (bottom - top), (-across / this.frame.width) * (right - left), this.sizes));
  }

  /** Zoom, move, and go from cell to cell. @param {KeyboardEvent} event */
  keydown(event) {
    const { key } = event;
    if (event.composedPath()[0] instanceof HTMLButtonElement) return false;
    if (key === "+" || key === "=") this.zoomBy(ZOOM);
    else if (key === "-" || key === "_") this.zoomBy(1 / ZOOM);
    else if (key === "0") this.see(null);
    else if (key === "Escape") this.store.set(afterEscape(this.store.get()));
    else if (key === "Enter") this.keepLargest();
    else return key in ARROWS && this.arrow(ARROWS[key]);
    return true;
  }

  /** Moves the kept cell, or else the window; on the whole map the arrows are the page's. @param {[number, number]} step */
  arrow([down, across]) {
    const { query, key, window: asked } = this.store.get();
    const window = this.window();
    if (query !== null && key !== null) {
      const next = { query: query + down, key: key + across };
      const { nQueries, nKeys } = this.sizes;
      if (next.query < 0 || next.key < 0 || next.query >= nQueries || next.key >= nKeys) return true;
      const held = holding(window, next.query, next.key, this.sizes);
      this.pointed = null;
      this.store.set({ ...next, window: isWhole(held, this.sizes) ? null : held });
      return true;
    }
    if (asked === null) return false;
    const [top, bottom, left, right] = window;
    this.see(moved(window, down * (bottom - top) * PART, across * (right - left) * PART, this.sizes));
    return true;
  }

  keepLargest() {
    const { weights } = this;
    if (!weights) return;
    const [top, bottom, left, right] = this.window().map(Math.round);
    const best = { query: top, key: left };
    const at = (/** @type {Cell} */ { query, key }) => weights.probs[query * weights.nKeys + key];
    for (let query = top; query < bottom; query += 1) {
      for (let key = left; key < right; key += 1) if (at({ query, key }) > at(best)) Object.assign(best, { query, key });
    }
    this.store.set({ ...best, anchor: "query" });
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
      const vectors = this.example.header.edited ? null : await this.example.vectors(layer, head);
      this.source = !vectors ? "codes" : vectors.exact ? "single" : vectors.within === null ? "half" : "bytes";
    }
    this.paint();
  }

  says() {
    return this.weights ? sentenceOfHead(this.example, { ...this.store.get(), ...this.asked() }, this.weights.probs) : [];
  }

  resized() {
    if (this.board.clientWidth !== this.room) this.paint();
  }

  paint() {
    if (!this.weights || !this.root.isConnected || !this.board.clientWidth) return;
    const { window, scale } = this.store.get();
    const theme = this.theme();
    const wanted = [this.shownHead, window, scale, theme, this.board.clientWidth, devicePixelRatio].join(" ");
    if (wanted !== this.painted) {
      this.painted = wanted;
      this.frame = this.measure();
      this.paintMap(this.plot(this.weights, this.frame), theme, scale);
      const [top, bottom, left, right] = this.window().map(Math.round);
      this.seen.textContent = window === null ? "" : `queries ${top}–${bottom - 1}, keys ${left}–${right - 1}`;
      this.all.hidden = this.out.disabled = window === null;
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

  /** @param {Weights} weights @param {Frame} frame */
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

  /** @param {ReturnType<MapView["plot"]>} plot @param {"light" | "dark"} theme @param {"root" | "linear"} scale */
  paintMap(plot, theme, scale) {
    const { frame, window, weights, colors } = plot;
    const dots = devicePixelRatio || 1;
    const [width, height] = [Math.round(frame.width * dots), Math.round(frame.height * dots)];
    paintCells(this.scratch, width, height, weights, window, { theme, scale, paper: colors.paper });
    this.pen.clearRect(0, 0, frame.total, frame.tall);
    const pen = new CanvasPen(this.pen, dots);
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
      theme: this.theme(),
      scale: this.store.get().scale,
      tokens: this.example.tokens,
      keyTokens: this.example.keyTokens,
    });
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

const KEYS = { 0: "whole map", "+ −": "zoom", "← ↑ → ↓": "move", Enter: "keep the largest", Esc: "let go" };

/** @typedef {{weight: number, received: number, source: "codes" | "half" | "single" | "bytes" | "none"}} Reading */

/** @param {HTMLElement} card @param {string} where */
function showMapHint(card, where) {
  card.dataset.shows = "hint";
  card.replaceChildren(
    element("p", { class: "where" }, [where]),
    element("p", { class: "hint" }, ["Point at a cell to read it. Click to keep its tokens; drag to move, turn the wheel to zoom."]),
  );
}

/**
 * @param {HTMLElement} card
 * @param {string} where
 * @param {Example} example
 * @param {{query: number, key: number}} cell
 * @param {Reading} reading
 */
function showCell(card, where, { tokens, keyTokens }, { query, key }, reading) {
  card.dataset.shows = "cell";
  const pairs = [
    ["query", `token ${query}`],
    ["key", `token ${key}`],
    ["received", `${reading.received.toFixed(2)} from all tokens`],
  ];
  card.replaceChildren(
    element("p", { class: "where" }, [where]),
    element("h2", {}, [tokenChip(tokens, query), " looks at ", tokenChip(keyTokens, key)]),
    number(reading),
    facts(pairs),
  );
}

/** @param {Reading} reading */
function number({ weight, source }) {
  return large(weight, writtenWeight(weight, source), precision(weight, source));
}

/** @param {number} weight @param {Reading["source"]} source */
function writtenWeight(weight, source) {
  if (source === "none") return "0";
  if (source === "codes") return percent(weight);
  return `${(weight * 100).toFixed(source === "single" ? 4 : 2)}\u202f%`;
}

/** @param {number} weight @param {Reading["source"]} source */
function precision(weight, source) {
  if (source === "none") return "a token cannot look ahead here";
  if (source === "single") return "exact, from query and key";
  if (source === "bytes") return "from query and key, a byte a number";
  if (source === "half") return "from query and key, rounded to half precision";
  return `rounded: ${boundsText(Math.round(255 * Math.sqrt(weight)))}`;
}

/** @param {Store} store @param {boolean} causal */
function createMapLegend(store, causal) {
  const ramp = createRamp("map-ramp");
  const choices = /** @type {{id: "root" | "linear", label: string}[]} */ ([
    { id: "root", label: "square root" },
    { id: "linear", label: "linear" },
  ]);
  const scales = segments(choices, (id) => store.set({ scale: id }), "Colour scale", "map-scales");
  const sentences = [
    "A row is a token that looks, a column one that is looked at. Zoomed out, a point shows the largest weight it covers.",
    "Below, how much attention each token receives from the rows in view; at the right, how much of each row is in view.",
    causal ? "This model reads in one direction: what lies above the diagonal does not exist and is not drawn." : "",
  ];
  const parts = [
    ...ramp.parts,
    scales.root,
    ...sentences,
  ];
  const root = legendOf(parts, KEYS, "Weight");
  return {
    root,
    /** @param {"light" | "dark"} theme @param {number} largest */
    update(theme, largest) {
      const chosen = store.get().scale;
      const marks = [0, chosen === "root" ? largest / 4 : largest / 2, largest];
      ramp.show(gradientOf(theme), marks.map((weight) => percent(weight).replace(".0", "")));
      scales.show(chosen);
    },
  };
}

/** A pointer that moved less than this, in CSS pixels, did not mean to drag. */
const STILL = 4;
/** How much a pixel of the wheel zooms; a pinch on a touchpad comes as a wheel with Ctrl. */
const [WHEEL, PINCH] = [0.0016, 0.01];
/** Wheels that count in lines. */
const LINE = 24;

/** The hand on a map: wheel and pinch zoom, a drag moves, a click chooses. @param {MapView} map */
function listenToHand(map) {
  const { surface } = map;
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let dragged = false;
  const at = (/** @type {MouseEvent} */ event) => {
    const box = surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  surface.addEventListener("wheel", (event) => {
    const amount = event.deltaY * (event.deltaMode ? LINE : 1) * (event.ctrlKey ? PINCH : WHEEL);
    // At either end of the zoom the wheel turns the page.
    if (map.zoomAt(at(event), Math.exp(amount)) || event.ctrlKey) event.preventDefault();
  }, { passive: false });
  surface.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (!down.size) dragged = false;
    down.set(event.pointerId, at(event));
    surface.setPointerCapture(event.pointerId);
  });
  surface.addEventListener("pointermove", (event) => {
    const now = at(event);
    const before = down.get(event.pointerId);
    if (!before) return event.pointerType === "touch" ? undefined : map.point(map.cellAt(now.x, now.y));
    const [across, tall] = [now.x - before.x, now.y - before.y];
    if (down.size === 1 && !dragged && Math.hypot(across, tall) < STILL) return undefined;
    dragged = true;
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    down.set(event.pointerId, now);
    if (!other) return map.drag(across, tall);
    // Of two fingers the other did not move.
    const apart = (/** @type {{x: number, y: number}} */ point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 1);
    map.drag(across / 2, tall / 2);
    map.zoomAt({ x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 }, apart(before) / apart(now));
    return undefined;
  });
  const up = (/** @type {PointerEvent} */ event) => down.delete(event.pointerId);
  surface.addEventListener("pointerup", up);
  surface.addEventListener("pointercancel", up);
  surface.addEventListener("pointerleave", () => map.point(null));
  surface.addEventListener("click", (event) => {
    const { x, y } = at(event);
    if (!dragged) map.keep(map.cellAt(x, y));
  });
  surface.addEventListener("dblclick", () => void map.see(null));
}
