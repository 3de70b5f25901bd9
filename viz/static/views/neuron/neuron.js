/**
 * The neuron view: for one token that looks, its query, the key of each token, their products
 * dimension by dimension, the scores and the weights; after BertViz' neuron view (Vig 2019).
 *
 * Query, keys and products share their columns, so that a dimension is read downwards. Only the
 * rows in sight are in the document and on the canvases.
 *
 * @import { Focus, Side } from "../../core/data/attention.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Store } from "../../core/state/state.js"
 * @import { Cell, Loaded, Scene } from "./paint.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { sentenceOfRow } from "../../core/data/sentence.js";
import { beside } from "../../core/data/sharing.js";
import { pairOf, sees, whyAbsent } from "../../core/data/softmax.js";
import { cssColors, onPaper } from "../../core/draw/canvas.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { rampOf } from "../../core/draw/colors.js";
import { afterEscape } from "../../core/state/state.js";
import { share, short } from "../../core/text/numbers.js";
import { numeral } from "../../marks/cards.js";
import { chooseToken, LOW_ROW, rowHeight, Rows, tokenMenu, tokenOf } from "../../marks/rows.js";
import { dimensionAt } from "../../marks/strips.js";
import { drawLines, drawVectors, neuronFigure, scalesOf, spanOf, writeNumbers } from "./paint.js";

/** CSS pixels drawn above and below what is in sight. */
const NEAR = 160;
/** Device pixels of the tallest canvas that browsers draw. */
const TALLEST = 32000;

class NeuronView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example, store } = stage;
    this.frame = createNeuronFrame(example, store);
    this.root = this.frame.root;
    this.tops = { query: this.frame.queries.tops, key: this.frame.keys.tops };
    this.loaded = /** @type {Loaded | null} */ (null);
    this.pointed = /** @type {number | null} */ (null);
    this.under = /** @type {number | null} */ (null);
    this.cell = /** @type {Cell | null} */ (null);
    this.broughtIn = /** @type {number | null} */ (null);
    this.waiting = 0;
    this.all = Math.max(...[this.tops.query, this.tops.key].map((tops) => tops[tops.length - 1]));
    this.frame.body.style.height = `${this.all}px`;
    this.listen();
  }

  listen() {
    const { frame } = this;
    frame.onward.addEventListener("click", () => this.onward());
    frame.scroll.addEventListener("scroll", () => this.later(), { passive: true });
    frame.scroll.addEventListener("pointerover", ({ target, pointerType }) => {
      if (pointerType !== "touch") this.point(tokenOf(target));
    });
    frame.scroll.addEventListener("focusin", ({ target }) => this.point(tokenOf(target)));
    frame.scroll.addEventListener("pointermove", (event) => this.pointAt(event));
    frame.scroll.addEventListener("pointerleave", () => {
      this.under = null;
      this.cell = null;
      this.paint();
    });
    frame.scroll.addEventListener("click", ({ target }) => this.click(tokenOf(target)));
    new ResizeObserver(() => this.later()).observe(frame.scroll);
  }

  /** Shows the store's state. */
  async update() {
    const asked = this.asked();
    const { layer, head } = asked;
    const vectors = await this.example.vectors(layer, head);
    if (!this.stillAsked(asked)) return;
    this.frame.empty.textContent = vectors ? "" : whyAbsent(this.example, layer, head);
    this.frame.scroll.hidden = this.frame.top.hidden = !vectors;
    if (vectors && this.loaded?.vectors !== vectors) {
      this.loaded = { layer, head, vectors, scales: scalesOf(vectors, this.example.causal) };
    }
    if (!vectors) this.loaded = null;
    this.bringIn();
    this.paint();
  }

  /** Scrolls to the token that looks, where it was chosen elsewhere. */
  bringIn() {
    const query = this.shownPair()?.row.query ?? null;
    if (query === null || query === this.broughtIn) return;
    this.broughtIn = query;
    this.scrollTo("query", query);
  }

  /** @param {Side} side @param {number} index */
  scrollTo(side, index) {
    const { scroll, head, row } = this.frame;
    const top = this.tops[side][index];
    const above = head.root.offsetHeight + row;
    const inWindow = innerHeight - scroll.getBoundingClientRect().top - above;
    const whole = scroll.clientHeight - above;
    const room = inWindow > 3 * row ? Math.min(whole, inWindow) : whole;
    const from = top - scroll.scrollTop;
    if (from >= 0 && from <= room) return;
    // A step beyond the edge scrolls by a row, a leap to the middle.
    const near = from < 0 ? from > -3 * row : from < room + 3 * row;
    if (near) scroll.scrollTop += from < 0 ? from : from - room;
    else scroll.scrollTop = top - room / 2;
  }

  /** @param {Focus | null} token */
  point(token) {
    if (token?.side === "query") {
      if (this.pointed === token.index) return;
      this.pointed = token.index;
    } else if (this.under === (token?.index ?? null)) return;
    this.under = token?.side === "key" ? token.index : null;
    this.paint();
  }

  /** @param {PointerEvent} event */
  pointAt({ target, clientX, pointerType }) {
    const { loaded } = this;
    if (!loaded || pointerType === "touch") return;
    const token = tokenOf(target);
    const { head } = this.frame;
    const inQuery = target instanceof Node && head.key.contains(target);
    const columns = inQuery ? [head.key] : [head.key, head.product];
    const dimension = columns.reduce((found, column) => {
      const { left, width } = column.getBoundingClientRect();
      return Math.max(found, dimensionAt(clientX, left, width, loaded.vectors.width));
    }, -1);
    const there = dimension >= 0 && (inQuery || token?.side === "key");
    const cell = there ? { key: inQuery ? -1 : (token?.index ?? -1), dimension } : null;
    if (cell?.key === this.cell?.key && cell?.dimension === this.cell?.dimension) return;
    this.cell = cell;
    this.paint();
  }

  /** @param {Focus | null} token */
  click(token) {
    if (!token) return;
    const state = this.store.get();
    const { side, index } = token;
    if (side === "query") {
      const same = state.query === index;
      this.store.set(same ? { query: null, key: null } : { query: index, anchor: "query" });
    } else {
      const query = this.shownPair()?.row.query ?? null;
      this.store.set({ query, key: state.key === index ? null : index, anchor: "query" });
    }
  }

  /** On to the arithmetic of the pair that is shown. */
  onward() {
    const pair = this.shownPair();
    if (pair) this.store.set({ view: "arithmetic", query: pair.row.query, key: pair.key, anchor: "query" });
  }

  /** The keys that mean a token here. @param {KeyboardEvent} event @returns {boolean} */
  keydown({ key, target }) {
    const state = this.store.get();
    const token = tokenOf(target);
    if (key === "Escape") {
      this.pointed = null;
      this.store.set(afterEscape(state));
      return true;
    }
    if (token && (key === "Enter" || key === " ")) {
      this.click(token);
      return true;
    }
    const from = token ?? (state.query === null ? null : { side: /** @type {const} */ ("query"), index: state.query });
    if (!from || (key !== "ArrowUp" && key !== "ArrowDown")) return false;
    this.move(from, key === "ArrowUp" ? -1 : 1);
    return true;
  }

  /** @param {Focus} from @param {number} by */
  move({ side, index }, by) {
    const next = index + by;
    if (next < 0 || next >= this.tops[side].length - 1) return;
    this.scrollTo(side, next);
    if (this.store.get()[side] === index) this.store.set({ [side]: next });
    this.paint();
    const rows = side === "query" ? this.frame.queries : this.frame.keys;
    rows.items.get(next)?.focus({ preventScroll: true });
    // The rows scroll in a part of the page that may reach out of the window.
    rows.items.get(next)?.scrollIntoView({ block: "nearest" });
  }

  shownPair() {
    if (!this.loaded) return null;
    const { query, key } = this.store.get();
    return pairOf(this.example, this.loaded.vectors, { query: query ?? this.pointed, key });
  }

  later() {
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const scene = this.root.isConnected ? this.scene() : null;
    if (!scene) return;
    const { frame } = this;
    const { query, key } = this.store.get();
    frame.onward.hidden = !this.limits.views.includes("arithmetic");
    frame.note.textContent = noteOf(this.example, scene.loaded);
    chooseToken(frame.pick, this.example.tokens, scene.row.query);
    frame.head.chip.replaceChildren(tokenChip(this.example.tokens, scene.row.query, 40));
    frame.scales.vectors.show(scene.loaded.scales.vectors, scene.theme);
    frame.scales.products.show(scene.loaded.scales.products, scene.theme);
    const { top } = scene;
    const end = top + scene.height;
    frame.queries.show(top, end);
    frame.queries.stop = scene.row.query;
    frame.queries.mark(scene.row.query, query);
    frame.keys.show(top, end);
    frame.keys.stop = key ?? this.under ?? -1;
    frame.keys.mark(frame.keys.stop, key);
    writeNumbers(frame.keys, scene);
    drawLines(frame, scene, this.tops);
    drawVectors(frame, scene, this.tops.key);
    this.read(scene);
    this.root.dataset.drawn = "true";
    this.root.dataset.layer = String(scene.loaded.layer);
    this.root.dataset.query = String(scene.row.query);
  }

  /** @returns {Scene | null} */
  scene() {
    const pair = this.shownPair();
    if (!this.loaded || !pair) return null;
    const { scroll, head } = this.frame;
    const whole = onPaper(this.root) && this.all * devicePixelRatio < TALLEST;
    const top = whole ? 0 : Math.max(0, scroll.scrollTop - NEAR);
    const height = whole ? this.all : Math.min(this.all, scroll.scrollTop + scroll.clientHeight - head.root.offsetHeight + NEAR) - top;
    const span = spanOf(this.tops.key, top, top + height);
    return { loaded: this.loaded, ...pair, theme: this.theme(), span, top, height, cell: this.cell };
  }

  /** @param {Scene} scene */
  read({ loaded: { vectors }, row, key }) {
    const { readout } = this.frame;
    const shown = this.store.get().key ?? this.under ?? key;
    const weight = sees(row, shown) ? share(row.weights[shown]) : "0\u202f%: it is masked";
    if (!this.cell) return readWeight(readout, this.example, { query: row.query, key: shown, weight });
    const at = this.cell.key < 0 ? shown : this.cell.key;
    const { dimension } = this.cell;
    return readDimension(readout, {
      dimension,
      query: vectors.query[row.query * vectors.width + dimension],
      key: vectors.key[at * vectors.width + dimension],
      scale: vectors.scale,
    });
  }

  says() {
    const pair = this.shownPair();
    return pair ? sentenceOfRow(this.example, { .../** @type {Loaded} */ (this.loaded), key: this.store.get().key }, pair.row) : [];
  }

  /** The picture to take away. */
  async figure() {
    const scene = this.scene();
    if (!scene) throw new Error("nothing is shown");
    return neuronFigure(this.example, scene, cssColors(this.root));
  }
}

/** @type {Kind} */
export const neuronKind = {
  id: "neuron",
  label: "Neuron",
  title: "Query and key of one head, cell by cell, and the weights they make",
  missing: (example) => (example.hasVectors ? "" : "This page was made without query and key"),
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new NeuronView(stage),
};

/**
 * What stands in the neuron view whichever tokens are shown: switch, scales, captions, columns.
 *
 * @typedef {ReturnType<typeof createNeuronFrame>} NeuronFrame
 */

const EDITED = "the other pictures show the weights as the edit left them.";
const APART = "the other pictures show the model's.";


/** What is to be known beside the numbers. @param {Example} example @param {{layer: number, head: number}} loaded */
function noteOf(example, { layer, head }) {
  const { edited, apart } = example.header;
  const here = `${apart ?? "This trace was edited."} The weights here follow from query and key; ${apart ? APART : EDITED}`;
  return [...(edited ? [here] : []), ...beside(example, layer, head)].join(" ");
}

/** @param {Example} example @param {Store} store */
function createNeuronFrame(example, store) {
  const { tokens, keyTokens } = example;
  const row = rowHeight(example);
  const queries = new Rows(tokens, "query", "Tokens that look (query)", row);
  const keys = new Rows(keyTokens, "key", "Tokens that are looked at (key)", row, () => [
    element("data", { class: "neuron-score" }),
    element("data", { class: "neuron-weight" }),
  ]);
  const lines = canvas("neuron-lines");
  const cells = canvas("neuron-cells");
  const between = element("div", { class: "neuron-between" }, [lines]);
  const left = element("div", { class: "neuron-left" }, [queries.root]);
  const right = element("div", { class: "neuron-right" }, [keys.root, cells]);
  const body = element("div", { class: "neuron-grid neuron-body" }, [left, between, right]);
  const head = createHead();
  const scroll = element("div", { class: `neuron-scroll${row === LOW_ROW ? " dense" : ""}` }, [head.root, body]);
  const top = createTop(store);
  const empty = element("p", { class: "empty", role: "status" });
  const note = element("p", { class: "neuron-note" });
  const root = element("div", { class: "neuron-view" }, [top.root, note, empty, scroll]);
  return { ...top, root, top: top.root, note, empty, scroll, head, body, between, right, lines, cells, queries, keys, row };
}

/** @param {string} name */
function canvas(name) {
  return element("canvas", { class: name, "aria-hidden": "true" });
}

function createHead() {
  const chip = element("p", { class: "neuron-chosen" });
  const strip = canvas("neuron-query");
  const key = element("div", { class: "neuron-cell" }, [caption("its query above each key", "q, k"), strip]);
  const product = element("div", { class: "neuron-cell vectors" }, [caption("multiplied, cell by cell", "q × k")]);
  key.classList.add("vectors");
  const right = element("div", { class: "neuron-row" }, [
    element("div", { class: "neuron-cell" }, [caption("where it looks", "key"), chip]),
    key,
    product,
    element("div", { class: "neuron-cell vectors" }, [caption("summed", "score")]),
    element("div", { class: "neuron-cell" }, [caption("its share", "softmax")]),
  ]);
  const left = element("div", { class: "neuron-left" }, [caption("what looks", "query")]);
  const root = element("div", { class: "neuron-grid neuron-head" }, [
    left,
    element("div", { class: "neuron-between" }),
    right,
  ]);
  return { root, chip, strip, key, product };
}

/** @param {string} words @param {string} name */
function caption(words, name) {
  return element("p", { class: "neuron-caption" }, [element("strong", {}, [words]), ` ${name}`]);
}

/** @param {Store} store */
function createTop(store) {
  const pick = tokenMenu("Token that looks (query)", (query) => store.set({ query, anchor: "query" }));
  pick.classList.add("neuron-pick");
  const vectors = createScale("q, k");
  const products = createScale("q × k");
  const scales = element("div", { class: "neuron-scales vectors" }, [vectors.root, products.root]);
  const readout = element("p", { class: "neuron-readout" });
  const onward = element("button", { type: "button", class: "quiet neuron-onward" }, ["Step by step"]);
  const root = element("div", { class: "neuron-top" }, [
    element("div", { class: "neuron-bar" }, [pick, scales]),
    element("div", { class: "neuron-bar" }, [readout, onward]),
  ]);
  return { root, pick, scales: { vectors, products }, readout, onward };
}

/** @param {string} name */
function createScale(name) {
  const [low, high] = ["", ""].map(() => element("span", { class: "neuron-bound" }));
  const ramp = element("span", { class: "neuron-ramp" });
  const root = element("span", { class: "neuron-scale" }, [element("span", {}, [name]), low, ramp, high]);
  return {
    root,
    /** @param {number} scale @param {"light" | "dark"} theme */
    show(scale, theme) {
      low.textContent = short(-scale);
      high.textContent = short(scale);
      ramp.style.backgroundImage = rampOf(theme);
      root.setAttribute("aria-label", `Colours of ${name}: orange from ${short(-scale)}, blue to ${short(scale)}`);
      root.dataset.scale = String(scale);
    },
  };
}

/**
 * One dimension in numbers.
 *
 * @param {HTMLElement} readout
 * @param {{dimension: number, query: number, key: number, scale: number}} cell
 */
function readDimension(readout, { dimension, query, key, scale }) {
  const product = query * key;
  readout.dataset.dimension = String(dimension);
  readout.replaceChildren(
    element("strong", {}, [`Dimension ${dimension}`]),
    "  ",
    numeral("q", query),
    " × ",
    numeral("k", key),
    " = ",
    numeral("product", product),
    ", adds ",
    numeral("contribution", product * scale),
    " to the score",
  );
}

/**
 * One weight in a line.
 *
 * @param {HTMLElement} readout
 * @param {Example} example
 * @param {{query: number, key: number, weight: string}} pair
 */
function readWeight(readout, { tokens, keyTokens }, { query, key, weight }) {
  delete readout.dataset.dimension;
  readout.replaceChildren(
    tokenChip(tokens, query, 40),
    " looks at ",
    tokenChip(keyTokens, key, 40),
    ` with ${weight}`,
  );
}
