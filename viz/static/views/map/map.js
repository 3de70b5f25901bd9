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
import { segments } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { CanvasPen } from "../../core/export/pens.js";
import { afterEscape } from "../../core/state/state.js";
import { holding, inside, isWhole, moved, whole, zoomed } from "../../core/state/window.js";
import { percent, running } from "../../core/text/text.js";
import { boundsText, createRamp, facts, large, legendOf } from "../../marks/cards.js";
import { cellAt, frameFor, gradientOf, labelOf, longestLabel, mapFigure, paintAround, paintCells, paintOverlay, shortenTo, weightsOf } from "./plot.js";

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
    listenToHand(this.surface, handOf(this));
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

  /** @param {KeyboardEvent} event */
  keydown(event) {
    return event.composedPath()[0] instanceof HTMLButtonElement ? false : mapKey(this, event.key);
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
export function showMapHint(card, where) {
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
export function showCell(card, where, { tokens, keyTokens }, { query, key }, reading) {
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
export function createMapLegend(store, causal) {
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

/** @param {{nearer: () => void, further: () => void, all: () => void}} act */
export function createMapTools(act) {
  const out = step("−", "Zoom out", act.further);
  const all = step("whole map", "Show the whole map", act.all);
  all.className = "quiet";
  const seen = element("output", { class: "map-seen" });
  const steps = element("div", { class: "stepper" }, [out, step("+", "Zoom in", act.nearer)]);
  return {
    root: element("div", { class: "map-tools" }, [steps, seen, all]),
    /** @param {Window} window @param {boolean} whole */
    update(window, whole) {
      const [top, bottom, left, right] = window.map(Math.round);
      seen.textContent = whole ? "" : `queries ${top}–${bottom - 1}, keys ${left}–${right - 1}`;
      all.hidden = whole;
      out.disabled = whole;
    },
  };
}

/** @param {string} text @param {string} name @param {() => void} act */
function step(text, name, act) {
  const made = element("button", { type: "button", class: "step", "aria-label": name }, [text]);
  made.addEventListener("click", act);
  return made;
}

/**
 * The hand on a map: wheel and pinch zoom, a drag moves, a click chooses.
 *
 * @typedef {object} Hand
 * @property {(x: number, y: number, factor: number) => boolean} zoom  whether it changed anything
 * @property {(across: number, down: number) => void} drag  CSS pixels
 * @property {(x: number, y: number) => void} point
 * @property {() => void} leave
 * @property {(x: number, y: number) => void} click
 * @property {() => void} reset
 */

/** A pointer that moved less than this, in CSS pixels, did not mean to drag. */
const STILL = 4;
/** How much a pixel of the wheel zooms; a pinch on a touchpad comes as a wheel with Ctrl. */
const WHEEL = 0.0016;
const PINCH = 0.01;
/** Wheels that count in lines. */
const LINE = 24;

/** @param {HTMLElement} surface @param {Hand} hand */
export function listenToHand(surface, hand) {
  /** @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let dragged = false;
  const at = (/** @type {MouseEvent} */ event) => {
    const box = surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  surface.addEventListener("wheel", (event) => {
    const { x, y } = at(event);
    const amount = event.deltaY * (event.deltaMode ? LINE : 1) * (event.ctrlKey ? PINCH : WHEEL);
    // At either end of the zoom the wheel turns the page.
    if (hand.zoom(x, y, Math.exp(amount)) || event.ctrlKey) event.preventDefault();
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
    if (!before) return event.pointerType === "touch" ? undefined : hand.point(now.x, now.y);
    if (down.size === 1 && !dragged && Math.hypot(now.x - before.x, now.y - before.y) < STILL) return undefined;
    dragged = true;
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    down.set(event.pointerId, now);
    if (other) pinch(hand, before, now, other);
    else hand.drag(now.x - before.x, now.y - before.y);
    return undefined;
  });
  const up = (/** @type {PointerEvent} */ event) => down.delete(event.pointerId);
  surface.addEventListener("pointerup", up);
  surface.addEventListener("pointercancel", up);
  surface.addEventListener("pointerleave", () => hand.leave());
  surface.addEventListener("click", (event) => {
    const { x, y } = at(event);
    if (!dragged) hand.click(x, y);
  });
  surface.addEventListener("dblclick", () => hand.reset());
}

/**
 * @param {Hand} hand
 * @param {{x: number, y: number}} before
 * @param {{x: number, y: number}} now
 * @param {{x: number, y: number}} other  the finger that did not move
 */
function pinch(hand, before, now, other) {
  const distance = (/** @type {{x: number, y: number}} */ point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 1);
  hand.drag((now.x - before.x) / 2, (now.y - before.y) / 2);
  hand.zoom((now.x + other.x) / 2, (now.y + other.y) / 2, distance(before) / distance(now));
}

/** What the hand does to a map. @param {MapView} map @returns {Hand} */
export function handOf(map) {
  const part = (/** @type {number} */ at, /** @type {number} */ length) => Math.min(Math.max(at / length, 0), 1);
  return {
    zoom(x, y, factor) {
      if (!map.frame) return false;
      const window = map.window();
      const [top, bottom, left, right] = window;
      const query = top + part(y - map.frame.top, map.frame.height) * (bottom - top);
      const key = left + part(x - map.frame.left, map.frame.width) * (right - left);
      return map.see(zoomed(window, factor, query, key, map.sizes));
    },
    drag(across, down) {
      if (!map.frame) return;
      const window = map.window();
      const queries = (-down / map.frame.height) * (window[1] - window[0]);
      const keys = (-across / map.frame.width) * (window[3] - window[2]);
      map.see(moved(window, queries, keys, map.sizes));
    },
    point: (x, y) => map.point(map.cellAt(x, y)),
    leave: () => map.point(null),
    click: (x, y) => map.keep(map.cellAt(x, y)),
    reset: () => void map.see(null),
  };
}

/** A step of the keyboard and of the buttons, and the part of the window that an arrow moves by. */
const ZOOM = 0.7;
const PART = 0.2;
/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** @param {MapView} map @param {string} key @returns {boolean}  whether the key meant something */
export function mapKey(map, key) {
  const { store } = map;
  if (key === "+" || key === "=") map.zoomBy(ZOOM);
  else if (key === "-" || key === "_") map.zoomBy(1 / ZOOM);
  else if (key === "0") map.see(null);
  else if (key === "Escape") store.set(afterEscape(store.get()));
  else if (key === "Enter") keepLargest(map);
  else return key in ARROWS && arrow(map, ARROWS[key]);
  return true;
}

/**
 * Moves the kept cell, or else the window; on the whole map the arrows are the page's.
 *
 * @param {MapView} map
 * @param {[number, number]} step
 */
function arrow(map, [down, across]) {
  const { query, key } = map.store.get();
  const window = map.window();
  if (query !== null && key !== null) {
    const next = { query: query + down, key: key + across };
    const { nQueries, nKeys } = map.sizes;
    if (next.query < 0 || next.key < 0 || next.query >= nQueries || next.key >= nKeys) return true;
    const held = holding(window, next.query, next.key, map.sizes);
    map.pointed = null;
    map.store.set({ ...next, window: isWhole(held, map.sizes) ? null : held });
    return true;
  }
  if (map.store.get().window === null) return false;
  const [top, bottom, left, right] = window;
  map.see(moved(window, down * (bottom - top) * PART, across * (right - left) * PART, map.sizes));
  return true;
}

/** @param {MapView} map */
function keepLargest(map) {
  const { weights } = map;
  if (!weights) return;
  const [top, bottom, left, right] = map.window().map(Math.round);
  const best = { query: top, key: left };
  let most = -1;
  for (let query = top; query < bottom; query += 1) {
    for (let key = left; key < right; key += 1) {
      const weight = weights.probs[query * weights.nKeys + key];
      if (weight > most) {
        most = weight;
        Object.assign(best, { query, key });
      }
    }
  }
  map.store.set({ ...best, anchor: "query" });
}
