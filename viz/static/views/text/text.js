/**
 * The text view: the running text, each token as dark as a number of its own.
 *
 * The words are built once; a change of layer, heads or measure only changes their colours.
 *
 * @import { Focus, Shown, Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example, Layer } from "../../core/data/example.js"
 * @import { Measure, Shading } from "../../core/data/shading.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { State } from "../../core/state/state.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { largest, meanWeights, shownTokens } from "../../core/data/attention.js";
import { codesOf } from "../../core/data/codes.js";
import { sentenceOfText } from "../../core/data/sentence.js";
import { MEASURES, received, relevanceOf, shadedSide, shadingOf } from "../../core/data/shading.js";
import { headColor, hexOf, signColor, signedShade, strongest, withAlpha } from "../../core/draw/colors.js";
import { segments } from "../../core/draw/controls.js";
import { cssColors } from "../../core/draw/canvas.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { afterClick, keptToken, placesOf, tokenKey } from "../../core/state/state.js";
import { markFound, percent } from "../../core/text/text.js";
import { bar, createRamp, facts, KEYS, legendOf } from "../../marks/cards.js";
import { Texts } from "./texts.js";

class TextView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example, store } = stage;
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
    this.pointed = /** @type {Focus | null} */ (null);
    this.layer = /** @type {Layer | null} */ (null);
    this.turn = 0;
    /** The kept token that was brought into sight. */
    this.seen = "";
    this.listen();
  }

  async update() {
    this.turn += 1;
    const now = this.turn;
    await this.read(() => now === this.turn);
    // Something else may have been asked for while this was read.
    if (now !== this.turn) return;
    this.texts.build(this.store.get());
    this.paint();
    this.reveal();
    this.root.dataset.drawn = "true";
  }

  /** Reads the heads that are on. @param {() => boolean} wanted  false once something else is asked for */
  async read(wanted) {
    const take = (/** @type {Layer} */ read, /** @type {boolean} */ whole) => {
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

  /** @param {Layer} layer */
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
    return textFigure(this.root, this.scene(/** @type {Layer} */ (this.layer)));
  }
}

/** @type {Kind} */
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

/** @type {WeakMap<Layer, {name: string, values: Float64Array}>} */
const RECEIVED = new WeakMap();

/** @param {Example} example @param {State} state @returns {Measure} */
function measureOf(example, { measure }) {
  return measure === "relevance" && !relevanceOf(example) ? "received" : measure;
}

/**
 * @param {Example} example
 * @param {State} state
 * @param {Layer} layer
 * @param {Focus | null} pointed
 * @param {"light" | "dark"} theme
 * @returns {Scene}
 */
function sceneOf(example, state, layer, pointed, theme) {
  const measure = measureOf(example, state);
  const apart = example.keyTokens !== example.tokens;
  const texts = { query: example.tokens, key: example.keyTokens };
  const shaded = shadedSide(measure);
  const asked = shaded === "key" ? "query" : "key";
  const needs = measure === "from" || measure === "to";
  const relevance = measure === "relevance" ? relevanceOf(example, state.query) : null;
  const asking = state[asked] ?? (pointed?.side === asked ? pointed.index : null);
  const chosen = needs ? asking : (relevance?.of ?? null);
  const shown = shownIn(example, state);
  const values = valuesOf(example, state, layer, shown, chosen);
  const over = apart && pointed?.side !== shaded ? null : (pointed?.index ?? null);
  const own = needs || relevance?.choice ? null : apart ? state[shaded] : (state.query ?? state.key);
  return {
    measure,
    name: relevance?.name ?? "",
    where: where(measure, state),
    tokens: texts[shaded],
    others: texts[asked],
    chosen,
    choice: Boolean(relevance?.choice),
    // While a token is only looked through, its own number is not what is asked for.
    pointed: needs && state[asked] === null ? null : (over ?? own),
    // A token counts most for what becomes of itself, which would leave the others pale.
    shading: shadingOf(values, texts[shaded].special.map((special, i) => special || Number(relevance?.of === i))),
    takesPart: measure === "relevance" ? new Uint8Array(values.length).fill(1) : shown[shaded],
    color: colorOf(measure, state, theme),
    below: signColor(-1, theme),
  };
}

/** @param {Example} example @param {State} state @returns {Shown} */
function shownIn({ tokens, keyTokens }, { filter, special }) {
  return { query: shownTokens(tokens, filter, special).query, key: shownTokens(keyTokens, filter, special).key };
}

/**
 * @param {Example} example
 * @param {State} state
 * @param {Layer} layer
 * @param {Shown} shown
 * @param {number | null} chosen
 */
function valuesOf(example, state, layer, shown, chosen) {
  const measure = measureOf(example, state);
  const heads = state.heads.map((head) => example.heads.indexOf(head));
  if (measure === "relevance") return Float64Array.from(relevanceOf(example, state.query)?.values ?? []);
  if (measure !== "received") {
    const side = measure === "from" ? "query" : "key";
    if (chosen === null) return new Float64Array(side === "query" ? layer.nKeys : layer.nQueries);
    return meanWeights(layer, heads, shown, { side, index: chosen });
  }
  // The same while the pointer moves.
  const name = [heads, state.filter, state.special].join(" ");
  const known = RECEIVED.get(layer);
  if (known?.name === name) return known.values;
  const values = received(layer, heads, shown);
  RECEIVED.set(layer, { name, values });
  return values;
}

/** @param {Measure} measure @param {State} state */
function where(measure, { layer, heads }) {
  if (measure === "relevance") return "The whole model";
  if (heads.length === 1) return `Layer ${layer}, head ${heads[0]}`;
  return heads.length ? `Layer ${layer}, mean of ${heads.length} heads` : `Layer ${layer}, no head`;
}

/** @param {Measure} measure @param {State} state @param {"light" | "dark"} theme */
function colorOf(measure, { heads }, theme) {
  return heads.length === 1 && measure !== "relevance" ? headColor(heads[0], theme) : signColor(1, theme);
}

/**
 * @typedef {object} Scene  what the card is about
 * @property {Measure} measure
 * @property {string} name  of the measure, where it is not attention
 * @property {string} where  layer and heads, in words
 * @property {Tokens} tokens  those that are shaded
 * @property {Tokens} others  those that a chosen token is one of
 * @property {number | null} chosen  among the others
 * @property {boolean} choice  of relevance, another one can be chosen
 * @property {number | null} pointed  among those that are shaded
 * @property {Shading} shading
 * @property {Uint8Array} takesPart  1 where a shaded token does
 * @property {string} color
 * @property {string} below  the colour of numbers below zero
 */

const WRITTEN = 5;
const LEAST = 0.0005;

/** A number of a measure as it is written. @param {Measure} measure @param {number} value */
export function written(measure, value) {
  if (measure === "relevance") return value.toPrecision(3).replace("-", "\u2212");
  return value < 0.00995 ? `${(100 * value).toFixed(2)}\u202f%` : percent(value);
}

/** @param {HTMLElement} card @param {Scene} scene */
function showCard(card, scene) {
  const { measure, chosen, pointed, where } = scene;
  const needsChoice = (measure === "from" || measure === "to") && chosen === null;
  const shows = needsChoice ? "hint" : pointed === null ? "tokens" : "number";
  card.dataset.shows = shows;
  const parts = { hint, tokens: list, number: single }[shows](scene);
  card.replaceChildren(element("p", { class: "where" }, [where]), ...parts);
}

/** @param {Scene} scene */
function hint({ measure }) {
  const does = measure === "from" ? "where it looks" : "who looks at it";
  return [element("p", { class: "hint" }, [`Point at a token to see ${does}. Click it to keep it.`])];
}

/** @param {Scene} scene @returns {(Node | string)[]} */
function title({ measure, name, others, chosen }) {
  if (measure === "relevance") return named(name, others, chosen);
  if (measure === "received" || chosen === null) return ["Attention received"];
  return [tokenChip(others, chosen, 40), measure === "from" ? " looks at" : " is looked at by"];
}

/**
 * What the shades are, and for the output of which token.
 *
 * @param {string} name
 * @param {Tokens} others
 * @param {number | null} chosen
 */
function named(name, others, chosen) {
  return chosen === null ? [name] : [name, " for ", tokenChip(others, chosen, 40)];
}

/** @param {Scene} scene */
function list(scene) {
  const { measure, tokens, shading, color, below } = scene;
  const sizes = shading.values.map(Math.abs);
  const places = largest(sizes, WRITTEN, measure === "relevance" ? 0 : LEAST);
  const most = sizes[places[0]] || 1;
  const rows = places.map((i) => {
    const size = measure === "relevance" ? sizes[i] / most : sizes[i];
    const shade = shading.values[i] < 0 ? below : color;
    return bar(tokenChip(tokens, i, 40), size, { color: shade, number: number(measure, shading.values[i]) });
  });
  const rest = rows.length ? element("ul", { class: "bars" }, rows) : element("p", { class: "hint" }, [nothing(scene)]);
  return [element("h2", {}, title(scene)), rest];
}

/** @param {Scene} scene */
function nothing({ where }) {
  return where.includes("no head") ? "No head is switched on." : "No weight that is shown here.";
}

/** @param {Measure} measure @param {number} value @param {string} [kind] */
function number(measure, value, kind = "") {
  return element("data", { class: kind, value: String(value) }, [written(measure, value)]);
}

/** @param {Scene} scene */
function single(scene) {
  const { measure, name, tokens, others, chosen, shading, takesPart } = scene;
  const index = /** @type {number} */ (scene.pointed);
  const here = tokenChip(tokens, index, 40);
  const heading = {
    received: () => [here, " is looked at"],
    from: () => [tokenChip(others, Number(chosen), 40), " looks at ", here],
    to: () => [here, " looks at ", tokenChip(others, Number(chosen), 40)],
    relevance: () => [here, " · ", ...named(name, others, chosen)],
  }[measure]();
  if (!takesPart[index]) {
    return [element("h2", {}, heading), element("p", { class: "hint" }, ["It takes no part in what is shown here."])];
  }
  const count = takesPart.reduce((sum, one) => sum + one, 0);
  const own = Math.abs(shading.values[index]);
  const rank = 1 + shading.values.filter((value, i) => takesPart[i] && Math.abs(value) > own).length;
  const pairs = [
    ["token", String(index)],
    ["rank", `${rank} of ${count}`],
  ];
  if (measure === "received" || measure === "from") pairs.push(["even share", written(measure, 1 / takesPart.length)]);
  return [element("h2", {}, heading), number(measure, shading.values[index], "big"), facts(pairs)];
}

/** @param {Example} example @returns {{root: HTMLElement, update: (scene: Scene, ramp: string) => void}} */
function createTextLegend(example) {
  const says = element("p");
  const ramp = createRamp();
  const norm = element("p", { class: "text-norm" });
  const root = legendOf([says, ...ramp.parts, norm], KEYS);
  return {
    root,
    update(scene, colors) {
      const { measure, shading } = scene;
      const { scale } = shading;
      says.textContent = meaning(scene, example);
      const marks = measure === "relevance" ? [-scale, 0, scale] : [0, scale / 2, scale];
      const shown = scale > 0;
      for (const part of [...ramp.parts, norm]) part.hidden = !shown;
      ramp.show(colors, marks.map((mark) => (mark ? written(measure, mark) : "0")));
      norm.textContent = normalisation(scene);
    },
  };
}

/** @param {Scene} scene @param {Example} example */
function meaning({ measure, name, chosen, choice, takesPart }, { causal, normalised }) {
  const sum = normalised ? " In each head these weights add up to 100\u202f%." : "";
  const even = normalised ? ` Were all looked at alike, each would get ${written("received", 1 / takesPart.length)}.` : "";
  const ahead = causal ? " This model reads in one direction: a token looks at itself and back." : "";
  return {
    received: `The stronger a token’s shade, the more it is looked at: the mean over the tokens that look.${even}${ahead}`,
    from: `The stronger a token’s shade, the more the chosen one looks at it.${sum}${ahead}`,
    to: `The stronger a token’s shade, the more it looks at the chosen one. These weights belong to different tokens and have no fixed sum.${ahead}`,
    relevance: `The stronger the shade, the more the token counts in “${name}”${chosen === null ? "" : " for the output of one token"}: blue above zero, orange below.${choice ? " Click a token to choose it." : ""}`,
  }[measure];
}

/** @param {Scene} scene */
function normalisation({ measure, shading, chosen }) {
  const largestOf = measure === "relevance" ? "the largest size" : "the largest";
  const rest = shading.above ? " Others above it have it too." : "";
  const rounded = measure === "relevance" ? "" : " Weights are rounded by up to 0.4\u202f%, those under 1\u202f% by less than 0.04\u202f%.";
  const one = measure === "relevance" && chosen !== null ? "another" : "an";
  return `The strongest shade is ${largestOf} of ${one} ordinary token here, ${written(measure, shading.scale)}.${rest}${rounded}`;
}

const MARGIN = 16;
const CAPTION = 26;

/**
 * @param {HTMLElement} root  of the view, as it is shown
 * @param {Scene} scene
 * @returns {Figure}
 */
function textFigure(root, scene) {
  const { ink, soft, paper } = cssColors(root);
  const texts = [...root.querySelectorAll(".text-text")];
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const [left, top] = [boxes[0].left - MARGIN, boxes[0].top - MARGIN - CAPTION];
  const words = [...root.querySelectorAll(".text-token")].map((item) => wordOf(/** @type {HTMLElement} */ (item), left, top));
  return {
    name: "attention-text",
    width: boxes[0].width + 2 * MARGIN,
    height: boxes[boxes.length - 1].bottom - top + MARGIN,
    paper,
    paint(pen) {
      pen.text(MARGIN, MARGIN + 10, captionOf(scene), { size: 13, color: soft });
      for (const { rects, background, text, size, color, baseline, kept } of words) {
        for (const { x, y, width, height } of rects) {
          if (background) pen.rect(x, y, width, height, background.hex, background.alpha);
          if (kept) frame(pen, x, y, width, height, ink);
        }
        pen.text(rects[0].x + 2, baseline, text, { size, color });
      }
    },
    columns: ["position", "token", scene.measure],
    *rows() {
      for (const [i, value] of scene.shading.values.entries()) {
        yield [i, scene.tokens.text[i], scene.takesPart[i] ? value : ""];
      }
    },
  };

  /** @param {HTMLElement} item @param {number} x0 @param {number} y0 */
  function wordOf(item, x0, y0) {
    const own = getComputedStyle(item);
    const rects = [...item.getClientRects()].map(({ x, y, width, height }) => ({ x: x - x0, y: y - y0, width, height }));
    const size = parseFloat(own.fontSize);
    return {
      rects,
      background: withoutAlpha(own.backgroundColor),
      text: item.textContent ?? "",
      size,
      color: withoutAlpha(own.color)?.hex ?? ink,
      baseline: rects[0].y + rects[0].height / 2 + size * 0.35,
      kept: item.classList.contains("kept"),
    };
  }
}

/** @param {Scene} scene */
function captionOf({ where, measure, name, others, chosen }) {
  const token = chosen === null ? "" : ` “${others.text[chosen].trim()}”`;
  const says = {
    received: "attention received",
    from: `where${token} looks`,
    to: `who looks at${token}`,
    relevance: name + (token && ` for${token}`),
  }[measure];
  return `${where}: ${says}`;
}

/** @param {string} written  as a browser computes it: rgb() or rgba() */
function withoutAlpha(written) {
  const [red, green, blue, alpha = 1] = (written.match(/[\d.]+/g) ?? []).map(Number);
  if (red === undefined || alpha === 0) return null;
  return { hex: hexOf([red, green, blue]), alpha };
}

/**
 * @param {Pen} pen
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} color
 */
function frame(pen, x, y, width, height, color) {
  const [right, bottom] = [x + width, y + height];
  for (const edge of [y, bottom]) pen.line(x, edge, right, edge, color, 2);
  for (const edge of [x, right]) pen.line(edge, y, edge, bottom, color, 2);
}
