/**
 * The head view: tokens twice, and between them a line for each weight in the colour of its head.
 *
 * Two sheets lie under the tokens. The lower one has every line and is drawn when layer, heads
 * or filters change; the upper one has the lines and shades of one token and is drawn on each
 * move of the pointer, while the lower one is hidden.
 */

import { firstCode, gatherLines, largest, meanWeights, opposite, shownTokens, strengthFor } from "./attention.js";
import { createColumns, focusToken, markTokens, measure, tokenOf, writeWeights } from "./columns.js";
import { counterpart, showHint, showToken, showWeight } from "./details.js";
import { element } from "./dom.js";
import { createLegend } from "./legend.js";
import { lineAt } from "./lines.js";
import { shadeTokens } from "./shades.js";
import { Sheet } from "./sheet.js";
import { afterClick, afterEscape, keptToken } from "./state.js";

/** How many weights are written out, and the least of them. */
const WRITTEN = 5;
const LEAST_WRITTEN = 0.005;
/** From this many tokens on, rows are lower. */
const MANY = 64;

/**
 * @typedef {import("./attention.js").Focus} Focus
 * @typedef {import("./example.js").Layer} Layer
 * @typedef {import("./lines.js").Geometry} Geometry
 *
 * @typedef {object} Scene  all that a drawing depends on
 * @property {import("./data.js").Tokens} tokens
 * @property {Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {import("./attention.js").Shown} shown
 * @property {number} minimum
 * @property {import("./lines.js").Look} look
 * @property {Geometry} geometry
 */

export class HeadView {
  /** @param {import("./views.js").Stage} stage */
  constructor({ example, store, limits, theme }) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.themeNow = theme;
    this.columns = createColumns(example.tokens);
    this.lower = new Sheet("lower");
    this.upper = new Sheet("upper");
    this.lower.root.setAttribute("role", "img");
    this.upper.root.setAttribute("aria-hidden", "true");
    const { query, key } = this.columns.lists;
    this.between = element("div", { class: "between-columns" }, [this.lower.root, this.upper.root]);
    this.stage = element("div", { class: "stage" }, [query, this.between, key]);
    this.stage.classList.toggle("dense", example.tokens.text.length > MANY);
    this.empty = element("p", { class: "empty", role: "status" });
    this.root = element("div", { class: "head-view" }, [this.empty, captions(), this.stage]);
    this.card = element("section", { class: "details", "aria-live": "polite" });
    this.card.setAttribute("aria-label", "Weights in numbers");
    /** @type {Layer | null} */
    this.layer = null;
    /** @type {Focus | null} */
    this.pointed = null;
    /** @type {Geometry | null} */
    this.geometry = null;
    /** @type {"light" | "dark"} */
    this.theme = "light";
    this.drawnLower = "";
    this.legend = createLegend(example.causal);
    this.side = [this.card, this.legend.root];
    this.listen();
  }

  /** Shows the store's state. */
  async update() {
    const { heads } = this.store.get();
    this.theme = this.themeNow();
    this.legend.setStrength(strengthFor(heads.length, this.focus() !== null));
    const layer = await this.example.layer(this.store.get().layer);
    // Another layer may have been asked for while this one was unpacked.
    if (layer.number !== this.store.get().layer) return;
    this.layer = layer;
    this.paint();
  }

  listen() {
    const point = (/** @type {Focus | null} */ token) => {
      if (token?.side === this.pointed?.side && token?.index === this.pointed?.index) return;
      this.pointed = token;
      this.paint();
    };
    this.stage.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") point(tokenOf(event.target));
    });
    this.stage.addEventListener("pointerleave", () => point(null));
    this.stage.addEventListener("focusin", (event) => point(tokenOf(event.target)));
    this.stage.addEventListener("focusout", () => point(null));
    this.stage.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => {
      this.geometry = null;
      this.paint();
    }).observe(this.stage);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const token = tokenOf(event.target);
    if (token) return this.store.set(afterClick(this.store.get(), token));
    const drawing = (this.focus() ? this.upper : this.lower).drawing;
    if (!drawing || !this.layer) return undefined;
    const { left, top } = this.between.getBoundingClientRect();
    const place = lineAt(drawing, event.clientX - left, event.clientY - top);
    if (place < 0) {
      this.blur();
      return this.store.set({ query: null, key: null });
    }
    const { size } = this.layer;
    return this.store.set({ query: Math.floor(place / size) % size, key: place % size });
  }

  blur() {
    const root = /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
    if (root.activeElement instanceof HTMLElement) root.activeElement.blur();
  }

  /**
   * The keys that mean a token here.
   *
   * @param {KeyboardEvent} event
   * @returns {boolean}
   */
  keydown({ key, target }) {
    const state = this.store.get();
    const token = tokenOf(target);
    if (key === "Escape") {
      const nothingKept = keptToken(state) === null;
      if (nothingKept && token && target instanceof HTMLElement) target.blur();
      this.store.set(afterEscape(state));
      return true;
    }
    if (token && (key === "Enter" || key === " ")) {
      this.store.set(afterClick(state, token));
      return true;
    }
    const from = token ?? keptToken(state);
    if (!from || (key !== "ArrowUp" && key !== "ArrowDown")) return false;
    const index = from.index + (key === "ArrowUp" ? -1 : 1);
    if (index < 0 || index >= this.columns.items[from.side].length) return true;
    if (state[from.side] === from.index) this.store.set({ [from.side]: index });
    focusToken(this.columns, { side: from.side, index });
    return true;
  }

  /** @returns {Focus | null} */
  focus() {
    return keptToken(this.store.get()) ?? this.pointed;
  }

  paint() {
    if (!this.layer || !this.stage.isConnected) return;
    const scene = this.scene(this.layer);
    const focus = this.focus();
    this.stage.classList.toggle("focused", focus !== null);
    markTokens(this.columns, scene.shown, focus, this.store.get());
    this.paintLower(scene);
    this.paintUpper(scene, focus);
  }

  /**
   * @param {Layer} layer
   * @returns {Scene}
   */
  scene(layer) {
    const state = this.store.get();
    this.geometry ??= measure(this.between, this.columns);
    const strength = strengthFor(state.heads.length, this.focus() !== null);
    return {
      tokens: this.example.tokens,
      layer,
      heads: state.heads.map((head) => this.example.heads.indexOf(head)),
      shown: shownTokens(this.example.tokens, state.filter, state.special),
      minimum: state.minimum,
      look: { numbers: this.example.heads, theme: this.theme, strength },
      geometry: this.geometry,
    };
  }

  /** @param {Scene} scene */
  paintLower({ layer, heads, shown, minimum, look, geometry }) {
    const { filter, special } = this.store.get();
    const drawn = [layer.number, heads, filter, special, minimum, look.theme, geometry.width, geometry.height];
    if (drawn.join(" ") === this.drawnLower) return;
    this.drawnLower = drawn.join(" ");
    const strength = strengthFor(heads.length, false);
    const places = gatherLines(layer, heads, shown, firstCode(minimum, strength), null);
    const label = `Layer ${layer.number}: ${places.length} attention lines`;
    this.lower.root.setAttribute("aria-label", label);
    this.empty.textContent = places.length ? "" : whyEmpty(heads, minimum);
    const bright = places.length;
    this.lower.draw({ layer, places, heads, bright, geometry, look: { ...look, strength } });
    this.stage.dataset.layer = String(layer.number);
  }

  /**
   * @param {Scene} scene
   * @param {Focus | null} focus
   */
  paintUpper(scene, focus) {
    shadeTokens(this.columns.items, scene, focus);
    if (!focus) {
      writeWeights(this.columns, null, new Float64Array(), []);
      showHint(this.card);
      this.upper.draw(null);
      return;
    }
    const { layer, heads, shown, minimum, look, geometry } = scene;
    const places = gatherLines(layer, heads, shown, firstCode(minimum, look.strength), focus);
    const other = this.other(focus);
    const [front, behind] = chosenFirst(places, layer.size, focus, other);
    const sorted = Uint32Array.from([...front, ...behind]);
    this.upper.draw({ layer, places: sorted, heads, bright: front.length, geometry, look });
    this.write(scene, focus, other);
  }

  /**
   * @param {Scene} scene
   * @param {Focus} focus
   * @param {number | null} other
   */
  write(scene, focus, other) {
    const means = meanWeights(scene.layer, scene.heads, scene.shown, focus);
    const places = largest(means, WRITTEN, LEAST_WRITTEN);
    if (other !== null && !places.includes(other)) places.push(other);
    writeWeights(this.columns, focus, means, places);
    if (other === null) showToken(this.card, { ...scene, focus }, means, places);
    else showWeight(this.card, { ...scene, focus }, other);
  }

  /**
   * The token opposite the focus that was chosen, or is pointed at while the focus is kept.
   *
   * @param {Focus} focus
   * @returns {number | null}
   */
  other(focus) {
    const chosen = counterpart(this.store.get(), focus);
    if (chosen !== null) return chosen;
    return this.pointed?.side === opposite(focus.side) ? this.pointed.index : null;
  }
}

/**
 * The lines that end at the chosen token, and the others; all belong to the first when none is.
 *
 * @param {Uint32Array} places
 * @param {number} size
 * @param {Focus} focus
 * @param {number | null} other
 * @returns {[Uint32Array, Uint32Array]}
 */
function chosenFirst(places, size, { side }, other) {
  const ends = (/** @type {number} */ place) =>
    other === null || (side === "query" ? place : Math.floor(place / size)) % size === other;
  return [places.filter(ends), places.filter((place) => !ends(place))];
}

/**
 * @param {number[]} heads
 * @param {number} minimum
 */
function whyEmpty(heads, minimum) {
  if (!heads.length) return "No lines: no head is switched on.";
  if (!minimum) return "No lines: every weight that is shown here is too small to see.";
  return `No lines: every weight that is shown here is below ${minimum}\u202f%.`;
}


function captions() {
  return element("div", { class: "captions", "aria-hidden": "true" }, [
    element("p", {}, [element("strong", {}, ["the token that looks"]), " query"]),
    element("p", {}, [element("strong", {}, ["where it looks"]), " key"]),
  ]);
}

/** @type {import("./views.js").Kind} */
export const headKind = {
  id: "head",
  label: "Head",
  title: "A line from each token to where it looks, in the colour of the head",
  missing: () => "",
  oneHead: false,
  controls: ["layer", "heads", "filter", "minimum", "special"],
  create: (stage) => new HeadView(stage),
};
