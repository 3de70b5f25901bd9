/**
 * The whole of a model in one diagram: text, tokens, embeddings, layers, prediction, with the numbers of
 * the chosen token in each box. A box opens the view that shows it in full.
 */

import { usualQuery } from "../../core/data/steps.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { afterEscape } from "../../core/state/state.js";
import { boxOf } from "./box.js";
import { inputBoxes, outputBoxes } from "./ends.js";
import { layerHead, layerParts } from "./layer.js";
import { readWhole } from "./read.js";

/**
 * @typedef {import("./box.js").Box} Box
 * @typedef {import("./box.js").Way} Way
 * @typedef {import("./read.js").Whole} Whole
 */

/** Tokens of a long text that stand in the row at once. */
const MOST = 60;
/** Boxes of a branch that stand beside one another on a page of usual width. */
const MANY = 5;

export class WholeView {
  /**
   * @param {import("../../core/frame/kinds.js").Stage} stage
   * @param {import("../../core/data/source.js").Source} source
   */
  constructor({ example, store, limits, theme }, source) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.theme = theme;
    this.source = source;
    this.lead = element("p", { class: "whole-lead" });
    this.flow = element("div", { class: "whole-flow" });
    this.root = element("div", { class: "whole-view" }, [this.lead, this.flow]);
    /** @type {HTMLElement[]} */
    this.side = [];
    /** @type {(() => void)[]} */
    this.paints = [];
    new ResizeObserver(() => requestAnimationFrame(() => this.paint())).observe(this.root);
  }

  /** The token that the numbers are of. */
  position() {
    const { query } = this.store.get();
    const { tokens } = this.example;
    return query !== null && query < tokens.text.length ? query : (this.source.predicted ?? usualQuery(tokens));
  }

  async update() {
    const state = this.store.get();
    const whole = await readWhole(this.source, this.example, { layer: state.layer, position: this.position() });
    // Another token or layer may have been asked for while this one was read.
    if (this.store.get() !== state) return;
    this.show(whole);
    this.root.dataset.drawn = "true";
  }

  /** @param {Whole} whole */
  show(whole) {
    const { tokens } = this.example;
    const focused = this.focused();
    this.paints = [];
    this.lead.replaceChildren("One pass of the model, from the text down to its prediction. Every strip holds the numbers of ", element("strong", {}, [tokenChip(tokens, whole.position, 24)]), ": blue above zero, orange below. Open a box to see it in full.");
    const layers = this.example.layers.flatMap((layer) => this.layer(whole, layer));
    this.flow.replaceChildren(
      ...this.boxes(inputBoxes(whole).slice(0, 1)),
      this.tokens(whole),
      ...this.boxes(inputBoxes(whole).slice(1)),
      ...layers,
      ...this.boxes(outputBoxes(whole)),
    );
    if (focused) /** @type {HTMLElement | null} */ (this.flow.querySelector(`[data-box="${focused}"]`))?.focus({ preventScroll: true });
    this.paint();
  }

  focused() {
    const { activeElement } = /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
    return activeElement instanceof HTMLElement && this.flow.contains(activeElement) ? activeElement.dataset.box : undefined;
  }

  /** @param {Whole} whole */
  tokens({ position }) {
    const { tokens } = this.example;
    const first = Math.max(0, Math.min(position - MOST / 2, tokens.text.length - MOST));
    const places = Array.from(tokens.text.keys()).slice(first, first + MOST);
    const chips = places.map((i) => {
      const chip = element("button", { type: "button", class: "whole-token", "data-box": `token ${i}`, "aria-pressed": String(i === position) }, [tokenChip(tokens, i, 16)]);
      chip.addEventListener("click", () => this.store.set({ query: i, key: null, anchor: "query" }));
      return chip;
    });
    const more = tokens.text.length > MOST ? [element("span", { class: "whole-more" }, [`… ${tokens.text.length} in all`])] : [];
    return element("section", { class: "whole-tokens", "aria-label": "Tokens" }, [
      element("h3", {}, ["Tokens"]),
      element("p", {}, ["The tokenizer cuts the text into pieces of its vocabulary. Choose one to follow it."]),
      element("div", { class: "whole-chips" }, [...chips, ...more]),
    ]);
  }

  /**
   * @param {Box[]} boxes
   * @returns {HTMLElement[]}
   */
  boxes(boxes) {
    return boxes.map((box) => {
      const { root, paint } = boxOf(box, { theme: this.theme, go: (way) => this.open(way), can: (way) => this.can(way) });
      this.paints.push(paint);
      return root;
    });
  }

  /**
   * @param {Whole} whole
   * @param {number} layer
   * @returns {HTMLElement[]}
   */
  layer(whole, layer) {
    const open = layer === whole.layer;
    const head = layerHead(whole, layer, open, this.theme, (change) => this.store.set(change));
    this.paints.push(head.paint);
    if (!open) return [head.root];
    const drawn = layerParts(whole);
    const parts = drawn.map(({ kind, title, boxes }, i) => {
      const made = this.boxes(boxes);
      if (kind === "stream") return element("div", { class: "whole-stream" }, made);
      const caption = element("h3", { class: "whole-branch-title" }, [title]);
      // Two branches that read the same stream: what both give is added behind the second.
      const beside = drawn[i + 1]?.kind === "branch" ? " first" : drawn[i - 1]?.kind === "branch" ? " second" : "";
      const many = boxes.length > MANY ? " many" : "";
      const branch = element("section", { class: `whole-branch${many}${beside}`, "aria-label": title }, [caption, element("div", { class: "whole-row" }, made)]);
      branch.style.setProperty("--boxes", String(boxes.length));
      return branch;
    });
    return [element("section", { class: "whole-layer", "aria-label": `Layer ${layer}` }, [head.root, element("div", { class: "whole-inside" }, parts)])];
  }

  /** @param {Way} way */
  can({ view }) {
    return view === undefined || this.limits.views.includes(view);
  }

  /** @param {Way} way */
  open(way) {
    this.store.set({ query: this.position(), anchor: "query", key: null, ...way });
  }

  paint() {
    if (!this.root.isConnected || !this.root.clientWidth) return;
    for (const paint of this.paints) paint();
  }

  /**
   * Up and down walk through boxes; left and right, the layers, are the frame's.
   *
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  keydown({ key, target }) {
    if (key === "Escape") {
      this.store.set(afterEscape(this.store.get()));
      return true;
    }
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!by || !(target instanceof HTMLElement) || !this.flow.contains(target)) return false;
    const stops = /** @type {HTMLElement[]} */ ([...this.flow.querySelectorAll("button:not(:disabled)")]);
    const to = stops[stops.indexOf(target) + by];
    to?.focus();
    to?.scrollIntoView({ block: "nearest" });
    return Boolean(to);
  }
}

/** @type {import("../../core/frame/kinds.js").Kind} */
export const wholeKind = {
  id: "whole",
  label: "Whole",
  title: "The whole model as one diagram, from text to prediction",
  missing: ({ source }) => (source ? "" : "This page holds attention and no model. The whole is drawn by a page that runs one: minibert live, or minibert serve."),
  announced: true,
  oneHead: false,
  controls: ["layer"],
  create: (stage) => new WholeView(stage, /** @type {import("../../core/data/source.js").Source} */ (stage.example.source)),
};
