/**
 * The text view: the running text, each token as dark as a number of its own.
 *
 * The words are built once; a change of layer, heads or measure only changes their colours.
 */

import { codesOf } from "../../core/data/codes.js";
import { sentenceOfText } from "../../core/data/sentence_of_views.js";
import { MEASURES, relevanceOf, shadedSide } from "../../core/data/shading.js";
import { withAlpha } from "../../core/draw/colors.js";
import { signedShade, strongest } from "../../core/draw/contrast.js";
import { segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { afterClick, keptToken, placesOf } from "../../core/state/state.js";
import { tokenKey } from "../../core/state/token_keys.js";
import { markFound } from "../../core/text/matches.js";
import { createTextLegend, showCard, written } from "./card.js";
import { textFigure } from "./figure.js";
import { measureOf, sceneOf } from "./scene.js";
import { Texts } from "./texts.js";

/**
 * @typedef {import("../../core/data/attention.js").Side} Side
 * @typedef {import("../../core/data/attention.js").Focus} Focus
 * @typedef {import("./card.js").Scene} Scene
 */

export class TextView {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor({ example, store, theme }) {
    this.example = example;
    this.store = store;
    this.theme = theme;
    this.texts = new Texts(example, () => this.paint());
    this.tip = element("span", { class: "text-tip", "aria-hidden": "true" });
    const relevance = relevanceOf(example);
    const measures = MEASURES.filter(({ id }) => id !== "relevance" || relevance).map(({ id, label, title }) => {
      return { id, title, label: id === "relevance" ? String(relevance?.name) : label };
    });
    this.measures = segments(measures, (measure) => store.set({ measure }));
    const label = relevance ? "Shade by" : "Shade by attention";
    const bar = element("div", { class: "text-bar", role: "group", "aria-label": label }, [
      element("span", { class: "label", "aria-hidden": "true" }, [label]),
      this.measures.root,
    ]);
    this.root = element("div", { class: "text-view" }, [bar, ...this.texts.elements(), this.tip]);
    this.card = element("section", { class: "details text-card", "aria-live": "polite", "aria-label": "Numbers of this text" });
    this.legend = createTextLegend(example);
    this.side = [this.card, this.legend.root];
    /** @type {Focus | null} */
    this.pointed = null;
    /** @type {import("../../core/data/example.js").Layer | null} */
    this.layer = null;
    this.asked = 0;
    /** The kept token that was brought into sight. */
    this.seen = "";
    this.listen();
  }

  async update() {
    this.asked += 1;
    const now = this.asked;
    await this.read(() => now === this.asked);
    // Something else may have been asked for while this was read.
    if (now !== this.asked) return;
    this.texts.build(this.store.get());
    this.paint();
    this.reveal();
    this.root.dataset.drawn = "true";
  }

  /**
   * Reads the heads that are on.
   *
   * @param {() => boolean} wanted  false once something else is asked for
   */
  async read(wanted) {
    const take = (/** @type {import("../../core/data/example.js").Layer} */ read, /** @type {boolean} */ whole) => {
      if (whole) this.layer = read;
    };
    await codesOf(this.example).read(this.store.get().layer, placesOf(this.store, this.example), take, wanted);
  }

  listen() {
    const point = (/** @type {Focus | null} */ token) => {
      if (token?.index === this.pointed?.index && token?.side === this.pointed?.side) return;
      this.pointed = token;
      this.paint();
    };
    this.root.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") point(this.tokenOf(event.target));
    });
    this.root.addEventListener("pointerleave", () => point(null));
    this.root.addEventListener("focusin", (event) => point(this.tokenOf(event.target)));
    this.root.addEventListener("focusout", () => point(null));
    this.root.addEventListener("click", (event) => {
      const token = this.tokenOf(event.target);
      if (token) this.store.set(afterClick(this.store.get(), token));
    });
    new ResizeObserver(() => this.paint()).observe(this.root);
  }

  /**
   * The token an event happened on. Where both sides are the same tokens, it stands for the side
   * that is chosen from: who looks, unless the question is who looks at it.
   *
   * @param {EventTarget | null} target
   * @returns {Focus | null}
   */
  tokenOf(target) {
    const item = target instanceof Element ? target.closest(".text-token") : null;
    if (!(item instanceof HTMLElement)) return null;
    const usual = measureOf(this.example, this.store.get()) === "to" ? "key" : "query";
    const side = /** @type {Side} */ (item.dataset.side || usual);
    return { side, index: Number(item.dataset.index) };
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    const token = this.tokenOf(event.target);
    return tokenKey(event, this.store, {
      token,
      from: token ?? keptToken(this.store.get()),
      size: (side) => this.texts.tokens[side].text.length,
      focus: (next) => this.texts.focus(next),
    });
  }

  /** @param {import("../../core/data/example.js").Layer} layer */
  scene(layer) {
    return sceneOf(this.example, this.store.get(), layer, this.pointed, this.theme());
  }

  paint() {
    if (!this.layer || !this.root.isConnected) return;
    const scene = this.scene(this.layer);
    const state = this.store.get();
    this.measures.show(scene.measure);
    this.texts.paint(scene, shadedSide(scene.measure), this.shadeOf(scene), state);
    markFound(this.texts.items.query, this.example.tokens, state.find, this.texts.first.query);
    showCard(this.card, scene);
    this.legend.update(scene, this.ramp(scene));
    this.showTip(scene);
  }

  /** @param {Scene} scene @returns {(value: number) => string} */
  shadeOf({ measure, shading: { scale }, color }) {
    const theme = this.theme();
    if (measure !== "relevance") {
      const most = strongest(color, theme);
      return (value) => withAlpha(color, Math.min(value / scale, 1) * most);
    }
    return (value) => signedShade(value, scale, theme);
  }

  /** The shades of the legend. @param {Scene} scene */
  ramp(scene) {
    const shade = this.shadeOf(scene);
    const { scale } = scene.shading;
    const signed = scene.measure === "relevance" ? `${shade(-scale)}, ${shade(-1e-9 * scale)} 50%, ${shade(0)} 50%` : shade(0);
    return `linear-gradient(90deg, ${signed}, ${shade(scale)})`;
  }

  /** The number above the token that is pointed at. @param {Scene} scene */
  showTip({ measure, shading, takesPart, pointed }) {
    const index = this.pointed && pointed !== null ? pointed : -1;
    const item = this.texts.itemOf({ side: shadedSide(measure), index });
    this.tip.hidden = !item || !takesPart[index];
    if (!item || this.tip.hidden) return;
    this.tip.textContent = written(measure, shading.values[index]);
    const room = this.root.getBoundingClientRect();
    const box = item.getClientRects()[0] ?? item.getBoundingClientRect();
    const left = box.left - room.left + (box.width - this.tip.offsetWidth) / 2;
    this.tip.style.left = `${Math.max(0, Math.min(left, room.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${box.top - room.top - this.tip.offsetHeight}px`;
  }

  /** Brings a token into sight that was kept elsewhere. */
  reveal() {
    const kept = keptToken(this.store.get());
    const name = kept ? `${kept.side} ${kept.index}` : "";
    if (name === this.seen) return;
    this.seen = name;
    if (kept) this.texts.itemOf(kept)?.scrollIntoView({ block: "nearest" });
  }

  says() {
    return this.layer ? sentenceOfText(sceneOf(this.example, this.store.get(), this.layer, null, this.theme())) : [];
  }

  async figure() {
    await this.read(() => true);
    return textFigure(this.root, this.scene(/** @type {import("../../core/data/example.js").Layer} */ (this.layer)));
  }
}

/** @type {import("../../core/frame/kinds.js").Kind} */
export const textKind = {
  id: "text",
  label: "Text",
  title: "The running text, each token as dark as the attention it gets or gives",
  missing: ({ header: { arrays } }) =>
    arrays.some(({ quantity }) => quantity !== "thumbnails") ? "" : "The page holds no attention weights.",
  oneHead: false,
  controls: ["layer", "heads", "filter", "special"],
  create: (stage) => new TextView(stage),
};
