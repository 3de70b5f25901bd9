/**
 * Queries and keys of one head in one plane, over many sentences (Yeh et al. 2023, AttentionViz): a query
 * lies near the keys that it looks at. A click opens the sentence of a point.
 */

import { segments } from "../../core/draw/controls.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { currentHead } from "../../core/state/state.js";
import { counted, written } from "../../core/text/numbers.js";
import { percent } from "../../core/text/text.js";
import { gapsBefore } from "../../core/text/words.js";
import { jointFigure } from "./figure.js";
import { Legend } from "./legend.js";
import { planeOf, startsOf, weightsOf } from "./plane.js";
import { drawScatter, kindColor, kindOf, nearestPoint, positionColor, sideColor } from "./scatter.js";

/**
 * @typedef {import("../../core/data/source.js").Source} Source
 * @typedef {import("../../core/data/source.js").Collected} Collected
 * @typedef {import("./scatter.js").Point} Point
 *
 * @typedef {object} Drawn
 * @property {Collected} collected
 * @property {number[]} starts
 * @property {Point[]} points
 * @property {number} own  the text of the page
 * @property {import("./plane.js").Plane} plane
 */

/** Lines of the reader that are taken, and characters of each. */
const [MOST, LONGEST] = [60, 400];
/** Weights below this are no line. */
const FAINT = 0.02;
/** @type {{id: "side" | "position" | "token", label: string}[]} */
const TINTS = [
  { id: "side", label: "Query or key" },
  { id: "position", label: "Position" },
  { id: "token", label: "Kind of token" },
];

export class JointView {
  /**
   * @param {import("../../core/frame/kinds.js").Stage} stage
   * @param {Source} source
   */
  constructor({ example, store, limits, theme }, source) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.theme = theme;
    this.source = source;
    this.lead = element("p", { class: "joint-lead" });
    this.tints = segments(TINTS, (tint) => this.store.set({ tint }), "Colours");
    this.legend = new Legend();
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.room = element("div", { class: "joint-room" }, [this.canvas]);
    this.about = element("div", { class: "joint-about", "aria-live": "polite" });
    this.field = element("textarea", { rows: "3", "aria-label": "Sentences of your own, one a line", placeholder: "Sentences of your own, one a line" });
    this.field.value = source.texts.own;
    this.field.addEventListener("change", () => {
      source.texts.own = this.field.value;
      this.update();
    });
    this.root = element("div", { class: "joint-view" }, [this.lead, element("div", { class: "joint-tools" }, [this.tints.root, this.legend.root]), this.room, this.about, this.field]);
    /** @type {HTMLElement[]} */
    this.side = [];
    /** @type {Drawn | null} */
    this.drawn = null;
    /** @type {Point | null} */
    this.pointed = null;
    this.listen();
  }

  listen() {
    this.room.addEventListener("pointermove", ({ clientX, clientY }) => {
      const { left, top } = this.canvas.getBoundingClientRect();
      const [width, height] = this.size();
      this.point(this.drawn && nearestPoint(this.drawn.points, [clientX - left, clientY - top], width, height));
    });
    this.room.addEventListener("click", () => this.open());
    new ResizeObserver(() => requestAnimationFrame(() => this.paint())).observe(this.room);
  }

  /** The texts that are drawn; the page's own is the last. */
  texts() {
    const { samples, own } = this.source.texts;
    const lines = own.split("\n").map((line) => line.trim().slice(0, LONGEST)).filter(Boolean).slice(0, MOST);
    return [...samples, ...lines.map((line) => [line]), this.example.header.texts];
  }

  async update() {
    const state = this.store.get();
    const [layer, head] = [state.layer, currentHead(state, this.limits)];
    const texts = this.texts();
    this.tints.show(state.tint);
    const collected = await this.source.collect(texts, layer, head);
    const now = this.store.get();
    if (now.layer !== layer || currentHead(now, this.limits) !== head) return;
    this.drawn = drawnOf(collected, texts.length - 1);
    this.pointed = this.same(this.pointed);
    this.say(layer, head);
    this.paint();
    this.tell();
    this.root.dataset.drawn = "true";
  }

  /** The point that is to the picture what one was to the picture before. @param {Point | null} point */
  same(point) {
    return point && (this.drawn?.points.find(({ side, token }) => side === point.side && token === point.token) ?? null);
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  say(layer, head) {
    if (!this.drawn) return;
    const { collected, plane } = this.drawn;
    const tokens = counted(collected.query.length / collected.width, "token");
    const texts = counted(collected.from.reduce((sum, one) => sum + one.texts.length, 0), "text");
    const said = `Head ${head} of layer ${layer} over ${texts}, ${tokens}: ${nearness(plane.drawn)}.`;
    const how = `Two directions of ${collected.width} (principal components) hold ${percent(plane.covered)} of the spread. Keys are moved onto the mean of the queries and scaled, which changes no weight. Between distance and q · k the correlation is then ${written(plane.correlation, 2)}, in this plane ${written(plane.drawn, 2)} (after Yeh et al. 2023, AttentionViz).`;
    this.lead.replaceChildren(element("strong", {}, [said]), ` ${how}`);
    this.canvas.setAttribute("aria-label", `${said} Arrows walk through the tokens, Enter opens a sentence.`);
  }

  size() {
    const width = this.room.clientWidth;
    return [width, Math.max(300, Math.min(560, Math.round(width * 0.62)))];
  }

  /** @param {Point} point */
  colorOf(point) {
    const { tint } = this.store.get();
    const theme = this.theme();
    if (tint === "side" || !this.drawn) return sideColor(point.side, theme);
    const { tokens } = this.drawn.collected.from[point.text];
    if (tint === "token") return kindColor(kindOf(tokens, point.index), theme);
    return positionColor(tokens.text.length > 1 ? point.index / (tokens.text.length - 1) : 0, theme);
  }

  paint() {
    if (!this.drawn || !this.room.isConnected || !this.room.clientWidth) return;
    const theme = this.theme();
    this.legend.show(this.store.get().tint, theme);
    const [width, height] = this.size();
    const lines = this.linesOf(this.pointed);
    drawScatter(this.canvas, width, height, { points: this.drawn.points, color: (point) => this.colorOf(point), pointed: this.pointed, lines, own: this.drawn.own, theme });
  }

  /**
   * From a query to the keys of its text, by weight.
   *
   * @param {Point | null} point
   */
  linesOf(point) {
    if (!this.drawn || point?.side !== "query") return [];
    const { collected, starts, points } = this.drawn;
    const weights = weightsOf(collected, point.token, starts[point.text], starts[point.text + 1]);
    const nTokens = starts[starts.length - 1];
    return weights.map((weight, i) => ({ to: points[nTokens + starts[point.text] + i], weight })).filter(({ weight }) => weight >= FAINT);
  }

  /** @param {Point | null} point */
  point(point) {
    if (point === this.pointed) return;
    this.pointed = point;
    this.room.classList.toggle("pointed", Boolean(point));
    this.paint();
    this.tell();
  }

  /** The token that is pointed at, in its sentence. */
  tell() {
    const { pointed, drawn } = this;
    if (!drawn || !pointed) {
      this.about.replaceChildren(element("p", { class: "hint" }, ["Point at a mark to see its token in its sentence. A click opens the sentence in this page."]));
      return;
    }
    const { tokens } = drawn.collected.from[pointed.text];
    const lines = this.linesOf(pointed).sort((one, other) => other.weight - one.weight);
    const [first] = lines;
    const looks = first ? [" looks most at ", element("strong", {}, [tokenChip(tokens, first.to.index, 24)]), ` (${percent(first.weight)})`] : [];
    this.about.replaceChildren(
      element("p", {}, [`${pointed.side} of `, element("strong", {}, [tokenChip(tokens, pointed.index, 24)]), `, position ${pointed.index}${looks.length ? ":" : ""}`, ...looks]),
      sentenceOf(tokens, pointed.index),
    );
  }

  /** The picture to take away. */
  async figure() {
    if (!this.drawn) throw new Error("nothing is shown");
    const title = this.lead.querySelector("strong")?.textContent ?? "";
    return jointFigure({ title, ...this.drawn, color: (point) => this.colorOf(point) }, cssColors(this.root));
  }

  open() {
    if (!this.drawn || !this.pointed) return;
    this.source.texts.open(this.drawn.collected.from[this.pointed.text].texts);
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown({ key, target }) {
    if (target !== this.canvas || !this.drawn) return false;
    const { points } = this.drawn;
    if (key === "Enter" || key === " ") {
      this.open();
      return true;
    }
    if (key === "Escape") {
      this.point(null);
      return true;
    }
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!by) return false;
    const at = this.pointed ? points.indexOf(this.pointed) : -1;
    this.point(points[(at + by + points.length) % points.length]);
    return true;
  }
}

/** How far the picture can be read: near means looked at only where distance goes with q · k. @param {number} correlation */
function nearness(correlation) {
  if (correlation <= -0.6) return "a query lies near the keys that it fits";
  if (correlation <= -0.3) return "a query lies nearer to keys that it fits, on the whole";
  return "for this head, distance in the plane says little about where it looks";
}

/**
 * @param {Collected} collected
 * @param {number} own
 * @returns {Drawn}
 */
function drawnOf(collected, own) {
  const plane = planeOf(collected);
  const starts = startsOf(collected);
  const nTokens = starts[starts.length - 1];
  const x = betweenEnds(plane.x);
  const y = betweenEnds(plane.y);
  const points = Array.from(x, (value, i) => {
    const token = i % nTokens;
    const text = starts.findIndex((_, n) => token < starts[n + 1]);
    return /** @type {Point} */ ({ side: i < nTokens ? "query" : "key", token, text, index: token - starts[text], x: value, y: y[i] });
  });
  return { collected, starts, points, own, plane };
}

/** Numbers as parts of the way from the least to the largest. @param {Float64Array} numbers */
function betweenEnds(numbers) {
  const [low, high] = numbers.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  return numbers.map((value) => (high > low ? (value - low) / (high - low) : 0.5));
}

/**
 * @param {import("../../core/data/data.js").Tokens} tokens
 * @param {number} chosen
 */
function sentenceOf(tokens, chosen) {
  const gaps = gapsBefore(tokens);
  const parts = tokens.text.flatMap((_, i) => {
    const chip = tokenChip(tokens, i, 40);
    if (i === chosen) chip.classList.add("joint-chosen");
    return [gaps[i] ? " " : "", chip];
  });
  return element("p", { class: "joint-sentence" }, parts);
}

/** @type {import("../../core/frame/kinds.js").Kind} */
export const jointKind = {
  id: "joint",
  label: "Joint",
  title: "Queries and keys of one head over many sentences, in one plane",
  missing: ({ source }) =>
    source ? "" : "This page holds one text and no model. Many texts are drawn by a page that runs one: minibert live, or minibert serve.",
  announced: true,
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new JointView(stage, /** @type {Source} */ (stage.example.source)),
};
