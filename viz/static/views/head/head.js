/**
 * The head view: tokens twice, and between them a line for each weight in the colour of its head.
 *
 * Two sheets lie under the tokens. The lower one has every line and is drawn when layer, heads or
 * filters change; the upper one has those of one token, on each move of the pointer.
 */

import { gatherLines, largest, meanWeights, opposite, shownTokens, strengthFor } from "../../core/data/attention.js";
import { codesOf } from "../../core/data/codes.js";
import { hasLayer } from "../../core/data/measures.js";
import { sentenceOf } from "../../core/data/sentence.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { element } from "../../core/draw/dom.js";
import { afterClick, keptToken, placesOf } from "../../core/state/state.js";
import { tokenKey } from "../../core/state/token_keys.js";
import { matchesOf } from "../../core/text/matches.js";
import { LOW_ROW, tokenOf } from "../../marks/rows.js";
import { HeadCard } from "./card.js";
import { Columns } from "./columns.js";
import { counterpart } from "./details.js";
import { headFigure } from "./figure.js";
import { createLegend } from "./legend.js";
import { lineAt } from "./lines.js";
import { captions, chosenFirst, leastDrawn, whyFew } from "./parts.js";
import { shadeTokens } from "./shades.js";
import { Sheet } from "./sheet.js";

/** How many weights are written out, and the least of them. */
const WRITTEN = 5;
const LEAST_WRITTEN = 0.005;

/**
 * @typedef {import("../../core/data/attention.js").Focus} Focus
 * @typedef {import("../../core/data/example.js").Layer} Layer
 * @typedef {import("./lines.js").Geometry} Geometry
 *
 * @typedef {object} Scene  all that a drawing depends on
 * @property {import("../../core/data/data.js").Tokens} tokens  those that look
 * @property {import("../../core/data/data.js").Tokens} keyTokens
 * @property {Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {import("../../core/data/attention.js").Shown} shown
 * @property {number} minimum  percent
 * @property {number} usual  the minimum that the page began with
 * @property {number} top  lines of each token; 0: all
 * @property {import("./lines.js").Look} look
 * @property {Geometry} geometry
 */

export class HeadView {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor(stage) {
    const { example, store, limits, theme, ended } = stage;
    this.example = example;
    this.store = store;
    this.themeNow = theme;
    this.usual = limits.minimum;
    this.columns = new Columns(example, () => this.follow(), ended);
    this.lower = new Sheet("lower", ended);
    this.upper = new Sheet("upper", ended);
    const { query, key, row } = this.columns;
    this.lower.root.setAttribute("role", "img");
    this.upper.root.setAttribute("aria-hidden", "true");
    this.between = element("div", { class: "between-columns" }, [this.lower.root, this.upper.root]);
    this.stage = element("div", { class: "stage" }, [query.root, this.between, key.root]);
    this.stage.classList.toggle("dense", row === LOW_ROW);
    this.empty = element("p", { class: "empty", role: "status" });
    this.root = element("div", { class: "head-view" }, [this.empty, captions(example), this.stage]);
    this.card = new HeadCard(stage);
    this.layer = /** @type {Layer | null} */ (null);
    this.whole = false;
    this.asked = 0;
    this.theme = theme();
    this.drawnLower = "";
    this.legend = createLegend(example, limits.examples);
    this.side = [this.card.root, this.legend.root];
    this.listen(ended);
  }

  /** Shows the store's state. */
  async update() {
    const { layer, heads } = this.store.get();
    this.theme = this.themeNow();
    this.legend.setStrength(strengthFor(heads.length, this.focus() !== null));
    // At once, so that the token that was kept can be brought into sight.
    this.follow();
    this.asked += 1;
    const now = this.asked;
    this.card.there = null;
    const wanted = () => now === this.asked;
    const show = (/** @type {Layer} */ read, /** @type {boolean} */ whole) => {
      [this.layer, this.whole] = [read, whole];
      this.paint();
    };
    await codesOf(this.example).read(layer, placesOf(this.store, this.example), show, wanted);
    if (wanted() && (await this.card.read(layer, wanted)) && this.focus()) this.paint();
  }

  /** @param {AbortSignal} ended */
  listen(ended) {
    const { pointed } = this.store;
    pointed.subscribe(() => this.paint(), ended);
    this.stage.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") pointed.set(tokenOf(event.target));
    });
    this.stage.addEventListener("pointerleave", () => pointed.set(null));
    this.stage.addEventListener("focusin", (event) => pointed.set(this.columns.focused(event.target)));
    this.stage.addEventListener("focusout", () => pointed.set(null));
    this.stage.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.paint()).observe(this.stage);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const token = tokenOf(event.target);
    if (token) return this.store.set(afterClick(this.store.get(), token));
    const { drawing } = this.focus() ? this.upper : this.lower;
    if (!drawing || !this.layer) return undefined;
    const { left, top } = this.between.getBoundingClientRect();
    const place = lineAt(drawing, event.clientX - left, event.clientY - top);
    if (place < 0) {
      this.blur();
      return this.store.set({ query: null, key: null });
    }
    const { nQueries, nKeys } = this.layer;
    return this.store.set({ query: Math.floor(place / nKeys) % nQueries, key: place % nKeys });
  }

  says() {
    if (!this.layer || !this.whole) return [];
    const { query, key, filter, special } = this.store.get();
    // Without the geometry of a scene, for which the page would be laid out once more.
    const shown = shownTokens(this.example.tokens, filter, special, this.example.keyTokens);
    return sentenceOf({ example: this.example, layer: this.layer, heads: placesOf(this.store, this.example), shown, query, key });
  }

  async figure() {
    const { layer: number } = this.store.get();
    const take = (/** @type {Layer} */ read) => void (this.layer = read);
    if (this.layer?.number !== number || !this.whole) {
      await codesOf(this.example).read(number, placesOf(this.store, this.example), take, () => true);
    }
    const scene = this.scene(/** @type {Layer} */ (this.layer));
    const focus = this.inside(keptToken(this.store.get()));
    const look = { ...scene.look, strength: strengthFor(scene.heads.length, focus !== null) };
    const { keyTokens } = this.example;
    return headFigure({ scene: { ...scene, look }, focus, keyTokens, colors: cssColors(this.root) });
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
  keydown(event) {
    const { target } = event;
    const touched = tokenOf(target);
    const token = target instanceof Node && this.root.contains(target) ? touched : null;
    return tokenKey(event, this.store, {
      token,
      // A token of the picture beside this one is that picture's.
      from: token ?? (touched ? null : keptToken(this.store.get())),
      size: (side) => this.columns[side].size,
      focus: (next) => this.columns.focus(next),
    });
  }

  /** @returns {Focus | null} */
  focus() {
    return keptToken(this.store.get()) ?? this.inside(this.store.pointed.get());
  }

  /**
   * A token, if this text has it; the one beside it may be longer.
   *
   * @param {Focus | null} token
   */
  inside(token) {
    return token && token.index < this.columns[token.side].size ? token : null;
  }

  paint() {
    if (!this.layer || !this.stage.isConnected) return;
    const scene = this.scene(this.layer);
    const focus = this.focus();
    this.columns.reach();
    this.stage.classList.toggle("focused", focus !== null);
    this.paintLower(scene);
    this.paintUpper(scene, focus);
    this.paintTokens(scene, focus);
  }

  /** Makes and marks the rows near the window. */
  follow() {
    if (this.layer && this.stage.isConnected) this.paintTokens(this.scene(this.layer), this.focus());
  }

  /**
   * @param {Scene} scene
   * @param {Focus | null} focus
   */
  paintTokens(scene, focus) {
    const state = this.store.get();
    const [query, key] = [scene.tokens, scene.keyTokens].map((all) => matchesOf(all, state.find).tokens);
    this.columns.mark(scene.shown, focus, state, { query, key });
    shadeTokens(this.columns, scene, focus);
  }

  /**
   * @param {Layer} layer
   * @returns {Scene}
   */
  scene(layer) {
    const { tokens, keyTokens, heads: numbers } = this.example;
    const { heads, filter, special, minimum, top } = this.store.get();
    const { clientWidth, clientHeight } = this.between;
    const { middles, row } = this.columns;
    const strength = strengthFor(heads.length, this.focus() !== null);
    return {
      tokens,
      keyTokens,
      layer,
      heads: placesOf(this.store, this.example),
      shown: shownTokens(tokens, filter, special, keyTokens),
      minimum,
      usual: this.usual,
      top,
      look: { numbers, theme: this.theme, strength },
      geometry: { width: clientWidth, height: clientHeight, middles, row },
    };
  }

  /** @param {Scene} scene */
  paintLower(scene) {
    const { layer, heads, shown, minimum, top, look, geometry } = scene;
    const { filter, special } = this.store.get();
    const drawn = [layer.number, this.whole, heads, filter, special, minimum, top, look.theme, geometry.width, geometry.height].join(" ");
    if (drawn === this.drawnLower) return;
    this.drawnLower = drawn;
    const strength = strengthFor(heads.length, false);
    const least = leastDrawn(scene, strength, null);
    const places = gatherLines(layer, heads, shown, least, null, top);
    this.lower.root.setAttribute("aria-label", `Layer ${layer.number}: ${places.length} attention lines`);
    this.empty.textContent = this.whole ? whyFew(places.length, heads, minimum, least) : "";
    this.lower.draw({ layer, places, heads, bright: places.length, geometry, look: { ...look, strength } }, this.whole);
    if (this.whole) this.stage.dataset.layer = String(layer.number);
  }

  /**
   * @param {Scene} scene
   * @param {Focus | null} focus
   */
  paintUpper(scene, focus) {
    if (!focus) {
      this.columns.write(null);
      this.card.hint();
      return this.upper.draw(null);
    }
    const { layer, heads, shown, top, look, geometry } = scene;
    const places = gatherLines(layer, heads, shown, leastDrawn(scene, look.strength, focus), focus, top);
    const other = this.other(focus);
    this.upper.draw({ layer, ...chosenFirst(places, layer, focus, other), heads, geometry, look });
    const means = meanWeights(layer, heads, shown, focus);
    const listed = largest(means, WRITTEN, LEAST_WRITTEN);
    if (other !== null && !listed.includes(other)) listed.push(other);
    this.columns.write(focus, means, listed);
    this.card.write(scene, focus, other, means, listed);
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
    const pointed = this.inside(this.store.pointed.get());
    return pointed?.side === opposite(focus.side) ? pointed.index : null;
  }
}

/** @type {import("../../core/frame/kinds.js").Kind} */
export const headKind = {
  id: "head",
  label: "Head",
  title: "A line from each token to where it looks, in the colour of the head",
  missing: (example) =>
    example.layers.every((layer) => hasLayer(example, layer)) ? "" : "This page holds no single weights, only an overview.",
  oneHead: false,
  controls: ["layer", "heads", "filter", "minimum", "top", "special"],
  create: (stage) => new HeadView(stage),
};
