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
import { button } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { translated } from "../../core/text/translated.js";
import { stripOf } from "../../marks/strips.js";
import { BOXES, inputBoxes, outputBoxes, readWhole, TITLES } from "./boxes.js";

/** Tokens of a long text that stand in the row at once. */
const MOST = 60;
/** Rows of a picture that have their full height. */
const SEVERAL = 6;

class WholeView extends Staged {
  /** @param {Stage} stage @param {Source} source */
  constructor(stage, source) {
    super(stage);
    this.source = source;
    this.lead = element("p", { class: "whole-lead", "aria-live": "polite" });
    this.flow = element("div", { class: "whole-flow" });
    this.root = element("div", { class: "whole-view" }, [this.lead, this.flow]);
    const tell = (/** @type {Event} */ { target }) => this.tell(target instanceof Element ? target.closest("[data-box]") : null);
    for (const type of ["pointerover", "focusin"]) this.flow.addEventListener(type, tell);
    this.flow.addEventListener("pointerleave", () => this.tell(null));
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
    const focused = this.focused();
    const around = { theme: this.theme(), go: (/** @type {Way} */ way) => this.open(way), can: (/** @type {Way} */ way) => this.can(way) };
    const boxes = (/** @type {Box[]} */ all) => all.map((box) => boxOf(box, around));
    const layers = this.example.layers.map((layer) => this.layerHead(whole, layer));
    const model = element("div", { role: "group", class: "whole-column", "aria-label": "The model" }, [...boxes(inputBoxes(whole)), ...layers, ...boxes(outputBoxes(whole))]);
    const parts = layerParts(whole).map(({ title, boxes: own }) => {
      const caption = title ? [element("div", { class: "whole-bar-of" }, [element("h3", { class: "whole-branch-title" }, [title]), ...this.switches(whole, own)])] : [];
      return element("div", { role: "group", class: title ? "whole-branch" : "whole-stream", "aria-label": title || "Stream" }, [...caption, ...boxes(own)]);
    });
    const out = button("← Model", () => this.store.set({ level: "" }), { class: "quiet whole-out", "data-box": "out" });
    const heads = button("All heads →", () => this.store.set({ view: "model" }), { class: "quiet", "data-box": "model" });
    const head = element("div", { class: "whole-bar-of" }, [out, element("h3", {}, [`Layer ${whole.layer}`]), heads]);
    const inside = element("div", { role: "group", class: "whole-column inside", "aria-label": `Layer ${whole.layer}` }, [head, ...parts]);
    this.flow.dataset.level = this.store.get().level;
    this.flow.replaceChildren(this.tokens(whole), model, inside);
    this.tell(null);
    if (focused) /** @type {HTMLElement | null} */ (this.flow.querySelector(`[data-box="${focused}"]`))?.focus({ preventScroll: true });
  }

  /** Says what a box is, or what the diagram is. @param {Element | null} box */
  tell(box) {
    const says = box?.querySelector(".whole-says")?.textContent;
    const chosen = element("strong", {}, [tokenChip(this.example.tokens, this.position(), 24)]);
    this.lead.replaceChildren(...(says ? [says] : ["From the tokens to the prediction, and inside a layer: strips hold the numbers of ", chosen, ", blue above zero, orange below. Open a box to see it in full."]));
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
    const chips = places.map((i) => button(tokenChip(tokens, i, 16), () => this.store.set({ query: i, key: null, anchor: "query" }), { class: "whole-token", "data-box": `token ${i}`, "aria-pressed": String(i === position) }));
    const more = tokens.text.length > MOST ? [element("span", { class: "whole-more" }, [`… ${tokens.text.length} in all`])] : [];
    return element("div", { role: "group", class: "whole-chips", "aria-label": "Tokens" }, [...chips, ...more]);
  }

  /** The bar of a layer, which opens it; one scale for the stream in all layers, so that it can be seen to grow. @param {Whole} whole @param {number} layer */
  layerHead({ embed, after, layer: shown }, layer) {
    const numbers = /** @type {Float32Array} */ (after.get(layer));
    const made = button(element("span", { class: "whole-title" }, [`Layer ${layer}`]), () => this.store.set({ layer, level: "layer" }), { class: "whole-box", "aria-pressed": String(layer === shown), "data-box": `layer ${layer}` });
    made.append(element("span", { class: "whole-says" }, ["What the layer leaves in the stream."]), pictureOf([{ name: "", parts: [numbers], scale: scaleFor(embed, ...after.values()) }], this.theme()));
    return made;
  }

  /** What can be changed in a branch: each of its heads, and what it gives. @param {Whole} whole @param {Box[]} boxes */
  switches({ layer, example }, boxes) {
    const { changes } = this;
    if (!changes) return [];
    const places = boxes.flatMap(({ id }) => (id === "z" ? example.heads.map((head) => ({ quantity: id, layer, head })) : id === "attn_out" || id === "mlp_out" ? [{ quantity: id, layer }] : []));
    const made = places.map((place) => {
      const head = "head" in place ? `head ${place.head}` : translated`all`;
      const where = place.quantity === "mlp_out" ? `the MLP in layer ${layer}` : `attention in layer ${layer}`;
      const name = `${head} of ${where}: ${changes.to()}`;
      const index = `change ${place.quantity} ${head}`;
      const toggle = () => {
        // Beside the run before it, a layer has the whole place of the model.
        this.store.set({ level: "layer" });
        changes.toggle(place);
      };
      return button("head" in place ? String(place.head) : head, toggle, { class: "whole-token", "aria-label": name, "aria-pressed": String(changes.has(place)), "data-box": index, "data-index": index });
    });
    return [element("span", { class: "whole-chips whole-more" }, [`set ${changes.to()}: `, ...made])];
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
  keydown(event) {
    const { key, target } = event;
    if (super.keydown(event)) return true;
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!by || !(target instanceof HTMLElement) || !this.flow.contains(target)) return false;
    const stops = /** @type {HTMLElement[]} */ ([...this.flow.querySelectorAll("button:not(:disabled, [data-index])")]);
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
  missing: ({ source }) => (source ? "" : "This page holds attention but no model. A page that runs a model draws the whole: minibert live, or minibert serve."),
  announced: true,
  oneHead: false,
  controls: [],
  create: (stage) => new WholeView(stage, /** @type {Source} */ (stage.example.source)),
};

/**
 * @typedef {object} Part  of an open layer, in the order of the data
 * @property {string} title  of a branch; empty: the stream
 * @property {Box[]} boxes
 */

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
    if (step.part === "stream" || step.part !== of) parts.push({ title: TITLES[step.part], boxes: [] });
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

/** @param {Box} box @param {{theme: "light" | "dark", go: (way: Way) => void, can: (way: Way) => boolean}} around */
function boxOf(box, { theme, go, can }) {
  const { id, title, name, says, rows, fact, more = [], way, leads, kind = "box" } = box;
  const open = can(way);
  const root = button(element("span", { class: "whole-title" }, [title, ...(name ? [" ", element("code", {}, [name])] : [])]), () => go(way), { class: `whole-box ${kind}`, "data-box": id });
  root.append(
    element("span", { class: "whole-says" }, [open && leads ? `${says} Click for ${leads}.` : says]),
    ...(rows.length ? [pictureOf(rows, theme)] : []),
    ...more,
    ...(fact ? [element("span", { class: "whole-fact" }, [fact])] : []),
  );
  root.disabled = !open;
  return root;
}

/** The rows of a box. @param {Cells[]} rows @param {"light" | "dark"} theme */
function pictureOf(rows, theme) {
  return element("span", { class: `whole-cells${rows.length > SEVERAL ? " many" : ""}` }, rows.flatMap(({ name, parts, scale, head, groups = 1 }) => {
    // Of weights: of one colour, where `stripOf` looks for numbers above zero.
    const shades = head === undefined ? undefined : Array.from({ length: 511 }, (_, i) => withAlpha(headColor(head, theme), Math.max(0, i - 255) / 255));
    const size = parts.length / groups;
    const grouped = Array.from({ length: groups }, (_, i) => element("span", { class: "whole-group" }, parts.slice(i * size, (i + 1) * size).map((numbers) => stripOf(numbers, scale, theme, shades))));
    const names = rows.some((row) => row.name) ? [element("span", { class: "whole-name", "aria-hidden": "true" }, [name])] : [];
    return [...names, element("span", { class: "whole-strips" }, grouped)];
  }));
}
