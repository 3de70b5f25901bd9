/**
 * The whole of a model in one diagram: text, tokens, embeddings, layers, prediction, with the numbers of
 * the chosen token in each box. A box opens the view that shows it in full.
 *
 * @import { Source } from "../../core/data/source.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { State } from "../../core/state/state.js"
 * @import { Whole } from "./boxes.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { headColor, scaleFor, withAlpha } from "../../core/draw/colors.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { afterEscape } from "../../core/state/state.js";
import { stripOf } from "../../marks/strips.js";
import { BOXES, inputBoxes, outputBoxes, readWhole, TITLES } from "./boxes.js";

/** Tokens of a long text that stand in the row at once. */
const MOST = 60;
/** Boxes of a branch that stand beside one another on a page of usual width. */
const MANY = 5;

class WholeView extends Staged {
  /** @param {Stage} stage @param {Source} source */
  constructor(stage, source) {
    super(stage);
    this.source = source;
    this.lead = element("p", { class: "whole-lead" });
    this.flow = element("div", { class: "whole-flow" });
    this.root = element("div", { class: "whole-view" }, [this.lead, this.flow]);
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
    return element("div", { role: "group", class: "whole-tokens", "aria-label": "Tokens" }, [
      element("h3", {}, ["Tokens"]),
      element("p", {}, ["The tokenizer cuts the text into pieces of its vocabulary. Choose one to follow it."]),
      element("div", { class: "whole-chips" }, [...chips, ...more]),
    ]);
  }

  /** @param {Box[]} boxes @returns {HTMLElement[]} */
  boxes(boxes) {
    return boxes.map((box) => boxOf(box, { theme: this.theme(), go: (way) => this.open(way), can: (way) => this.can(way) }));
  }

  /** @param {Whole} whole @param {number} layer @returns {HTMLElement[]} */
  layer(whole, layer) {
    const open = layer === whole.layer;
    const head = layerHead(whole, layer, open, this.theme(), (change) => this.store.set(change));
    if (!open) return [head];
    const drawn = layerParts(whole);
    const parts = drawn.map(({ kind, title, boxes }, i) => {
      const made = this.boxes(boxes);
      if (kind === "stream") return element("div", { class: "whole-stream" }, made);
      const caption = element("h3", { class: "whole-branch-title" }, [title]);
      // Two branches that read the same stream: what both give is added behind the second.
      const beside = drawn[i + 1]?.kind === "branch" ? " first" : drawn[i - 1]?.kind === "branch" ? " second" : "";
      const many = boxes.length > MANY ? " many" : "";
      const branch = element("div", { role: "group", class: `whole-branch${many}${beside}`, "aria-label": title }, [caption, element("div", { class: "whole-row" }, made)]);
      branch.style.setProperty("--boxes", String(boxes.length));
      return branch;
    });
    return [element("div", { role: "group", class: "whole-layer", "aria-label": `Layer ${layer}` }, [head, element("div", { class: "whole-inside" }, parts)])];
  }

  /** @param {Way} way */
  can({ view }) {
    return view === undefined || this.limits.views.includes(view);
  }

  /** @param {Way} way */
  open(way) {
    this.store.set({ query: this.position(), anchor: "query", key: null, ...way });
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

/** @type {Kind} */
export const wholeKind = {
  id: "whole",
  label: "Whole",
  title: "The whole model as one diagram, from text to prediction",
  missing: ({ source }) => (source ? "" : "This page holds attention and no model. The whole is drawn by a page that runs one: minibert live, or minibert serve."),
  announced: true,
  oneHead: false,
  controls: ["layer"],
  create: (stage) => new WholeView(stage, /** @type {Source} */ (stage.example.source)),
};

/**
 * @typedef {object} Part  of an open layer, in the order of the data
 * @property {"stream" | "branch"} kind
 * @property {string} title
 * @property {Box[]} boxes
 */

/**
 * The bar of a layer, which opens it.
 *
 * @param {Whole} whole
 * @param {number} layer
 * @param {boolean} open
 * @param {"light" | "dark"} theme
 * @param {(change: Way) => void} set
 */
function layerHead(whole, layer, open, theme, set) {
  const after = /** @type {Float32Array} */ (whole.after.get(layer));
  const inside = whole.built.parallel ? "attention beside the MLP: both read the stream and add to it" : "attention, then the MLP; each adds to the stream";
  const attributes = { type: "button", class: "whole-layer-head", "aria-expanded": String(open), "data-box": `layer ${layer}` };
  const opener = element("button", attributes, [
    element("span", { class: "whole-title" }, [`Layer ${layer}`]),
    element("span", { class: "whole-says" }, [open ? inside : "what it leaves in the stream"]),
    ...(open ? [] : [pictureOf([{ name: "", parts: [after], scale: streamScale(whole) }], theme)]),
  ]);
  opener.addEventListener("click", () => set({ layer }));
  const heads = element("button", { type: "button", class: "whole-all", "data-box": `model ${layer}` }, ["All heads →"]);
  heads.addEventListener("click", () => set({ view: "model", layer }));
  return element("div", { class: open ? "whole-bar-of open" : "whole-bar-of" }, open ? [opener, heads] : [opener]);
}

/** One scale for the stream in all layers, so that it can be seen to grow. @param {Whole} whole */
function streamScale({ embed, after }) {
  return scaleFor(embed, ...after.values());
}

/**
 * The parts of the open layer, in the order of its steps: what belongs together stands in one part. A
 * norm that stands before or behind a branch is a box of it; one of a sum stands in the stream.
 *
 * @param {Whole} whole
 * @returns {Part[]}
 */
export function layerParts(whole) {
  const parts = /** @type {Part[]} */ ([]);
  let of = "";
  for (const step of whole.steps) {
    const boxes = (BOXES[step.id] ?? (() => []))(whole, step);
    if (step.part === "stream" || step.part !== of) parts.push({ kind: step.part === "stream" ? "stream" : "branch", title: TITLES[step.part], boxes: [] });
    of = step.part;
    parts[parts.length - 1].boxes.push(...boxes);
  }
  return parts;
}

/**
 * One box of the diagram: what it does in words, a small picture of its numbers, and where it leads.
 *
 * @typedef {Partial<State>} Way
 *
 * @typedef {object} Cells  a row of the picture
 * @property {string} name
 * @property {ArrayLike<number>[]} parts  one vector, or one of each head
 * @property {number} scale  the number with the strongest colour
 * @property {number} [head]  whose colour they have, where they are weights
 * @property {number} [groups]  in which the vectors of heads stand, where several share a key-value head
 *
 * @typedef {object} Box
 * @property {string} id
 * @property {string} title
 * @property {string} name  of the quantity
 * @property {string} says
 * @property {Cells[]} rows
 * @property {string} [fact]  one thing that is seen
 * @property {HTMLElement[]} [more]
 * @property {Way} way
 * @property {string} leads  the view that opens, in a word
 * @property {"box" | "stream" | "sum" | "norm"} [kind]
 */

/**
 * @param {Box} box
 * @param {{theme: "light" | "dark", go: (way: Way) => void, can: (way: Way) => boolean}} around
 */
function boxOf(box, { theme, go, can }) {
  const { id, title, name, says, rows, fact, more = [], way, leads, kind = "box" } = box;
  const open = can(way);
  const root = element("button", { type: "button", class: `whole-box ${kind}`, "data-box": id }, [
    element("span", { class: "whole-title" }, [title, ...(name ? [" ", element("code", {}, [name])] : [])]),
    element("span", { class: "whole-says" }, [says]),
    ...(rows.length ? [pictureOf(rows, theme)] : []),
    ...more,
    ...(fact ? [element("span", { class: "whole-fact" }, [fact])] : []),
    element("span", { class: "whole-leads" }, [open && leads ? `${leads} →` : ""]),
  ]);
  root.disabled = !open;
  root.addEventListener("click", () => go(way));
  return root;
}

/** The rows of a box. @param {Cells[]} rows @param {"light" | "dark"} theme */
function pictureOf(rows, theme) {
  return element("span", { class: "whole-cells" }, rows.flatMap(({ name, parts, scale, head, groups = 1 }) => {
    const shades = head === undefined ? undefined : shadesOf(headColor(head, theme));
    const size = parts.length / groups;
    const grouped = Array.from({ length: groups }, (_, i) => element("span", { class: "whole-group" }, parts.slice(i * size, (i + 1) * size).map((numbers) => stripOf(numbers, scale, theme, shades))));
    const names = rows.some((row) => row.name) ? [element("span", { class: "whole-name", "aria-hidden": "true" }, [name])] : [];
    return [...names, element("span", { class: "whole-strips" }, grouped)];
  }));
}

/** @type {Map<string, string[]>} */
const tables = new Map();

/**
 * Shades of one colour for weights, in the places where `stripOf` looks for numbers above zero.
 *
 * @param {string} color
 */
function shadesOf(color) {
  const table = tables.get(color) ?? Array.from({ length: 511 }, (_, i) => withAlpha(color, Math.max(0, i - 255) / 255));
  tables.set(color, table);
  return table;
}
