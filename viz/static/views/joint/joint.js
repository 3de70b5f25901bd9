/**
 * Queries and keys of one head in one plane, over many sentences (Yeh et al. 2023, AttentionViz): a query
 * lies near the keys that it looks at. A click opens the sentence of a point.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Collected, Source } from "../../core/data/source.js"
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Figure, Pen } from "../../core/export/figure.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Plane } from "./plane.js"
 */

import { moved } from "../../core/export/figure.js";
import { screenPen } from "../../core/export/pens.js";
import { Staged } from "../../core/frame/kinds.js";
import { cssColors } from "../../core/draw/canvas.js";
import { hexOf, mixed, PALETTES, signColor } from "../../core/draw/colors.js";
import { segments } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { counted, written } from "../../core/text/numbers.js";
import { gapsBefore, percent } from "../../core/text/text.js";
import { planeOf, startsOf, weightsOf } from "./plane.js";

/**
 * @typedef {object} Drawn
 * @property {Collected} collected
 * @property {number[]} starts
 * @property {Point[]} points
 * @property {number} own  the text of the page
 * @property {Plane} plane
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

class JointView extends Staged {
  /** @param {Stage} stage @param {Source} source */
  constructor(stage, source) {
    super(stage);
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
    this.drawn = /** @type {Drawn | null} */ (null);
    this.pointed = /** @type {Point | null} */ (null);
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
    const asked = this.asked();
    const { layer, head } = asked;
    const texts = this.texts();
    this.tints.show(state.tint);
    const collected = await this.source.collect(texts, layer, head);
    if (!this.stillAsked(asked)) return;
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

  /** @param {number} layer @param {number} head */
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
    this.legend.show(this.store.get().tint, this.theme());
    const [width, height] = this.size();
    drawScatter(screenPen(this.canvas, width, height), width, height, this.scene(this.drawn));
  }

  /** @param {Drawn} drawn @returns {Scene} */
  scene(drawn) {
    const { pointed } = this;
    return { ...drawn, color: (point) => this.colorOf(point), pointed, lines: this.linesOf(pointed), theme: this.theme(), ...cssColors(this.root) };
  }

  /** From a query to the keys of its text, by weight. @param {Point | null} point */
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
    return jointFigure(title, this.scene(this.drawn), this.drawn.collected, cssColors(this.root));
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

/** @param {Collected} collected @param {number} own @returns {Drawn} */
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

/** @param {Tokens} tokens @param {number} chosen */
function sentenceOf(tokens, chosen) {
  const gaps = gapsBefore(tokens);
  const parts = tokens.text.flatMap((_, i) => {
    const chip = tokenChip(tokens, i, 40);
    if (i === chosen) chip.classList.add("joint-chosen");
    return [gaps[i] ? " " : "", chip];
  });
  return element("p", { class: "joint-sentence" }, parts);
}

/** @type {Kind} */
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

/** Steps of the ramp of positions. */
const STEPS = [0, 0.25, 0.5, 0.75, 1];

class Legend {
  constructor() {
    this.root = element("ul", { class: "joint-legend" });
    this.shown = "";
  }

  /** @param {"side" | "position" | "token"} tint @param {"light" | "dark"} theme */
  show(tint, theme) {
    if (this.shown === `${tint} ${theme}`) return;
    this.shown = `${tint} ${theme}`;
    const shapes = [sample("query", tint === "side" ? sideColor("query", theme) : "", "query"), sample("key", tint === "side" ? sideColor("key", theme) : "", "key")];
    const colors = {
      side: () => [],
      position: () => [element("li", {}, ["first", ...STEPS.map((part) => patch(positionColor(part, theme))), "last"])],
      token: () => KINDS.map(({ id, label }) => element("li", {}, [patch(kindColor(id, theme)), label])),
    }[tint]();
    this.root.replaceChildren(...shapes, ...colors, element("li", { class: "joint-own" }, ["ring: the text of this page"]));
  }
}

/**
 * @param {"query" | "key"} side
 * @param {string} color  "": that of the style
 * @param {string} label
 */
function sample(side, color, label) {
  const mark = element("span", { class: `joint-mark ${side}`, "aria-hidden": "true" });
  mark.style.backgroundColor = color;
  return element("li", {}, [mark, label]);
}

/** @param {string} color */
function patch(color) {
  const made = element("span", { class: "joint-patch", "aria-hidden": "true" });
  made.style.backgroundColor = color;
  return made;
}

/**
 * @typedef {"light" | "dark"} Theme
 * @typedef {"side" | "position" | "token"} Tint
 *
 * @typedef {object} Point
 * @property {"query" | "key"} side
 * @property {number} token  among all tokens
 * @property {number} text
 * @property {number} index  in its text
 * @property {number} x  0 to 1
 * @property {number} y
 *
 * @typedef {object} Scene
 * @property {Point[]} points
 * @property {(point: Point) => string} color
 * @property {Point | null} pointed
 * @property {{to: Point, weight: number}[]} lines  from the one that is pointed at
 * @property {number} own  the text of the page; its points have a ring
 * @property {Theme} theme
 * @property {string} ink
 * @property {string} soft
 */

/** CSS pixels. */
const [MARGIN, SIZE, NEAR] = [14, 3.2, 14];
/** Colours of queries and of keys, in the palette of heads: far apart for every eye. */
const SIDES = { light: [2, 7], dark: [2, 8] };

/** Kinds of tokens, each with the number of its colour. */
export const KINDS = [
  { id: "word", label: "word", color: 0 },
  { id: "piece", label: "piece of a word", color: 1 },
  { id: "mark", label: "punctuation", color: 5 },
  { id: "special", label: "special token", color: 3 },
];

/** @param {Tokens} tokens @param {number} i */
export function kindOf({ text, special, piece }, i) {
  if (special[i]) return "special";
  if (piece[i]) return "piece";
  return /[\p{L}\p{N}]/u.test(text[i]) ? "word" : "mark";
}

/** @param {"query" | "key"} side @param {Theme} theme */
function sideColor(side, theme) {
  return PALETTES[theme][SIDES[theme][side === "query" ? 0 : 1]];
}

/** @param {string} kind @param {Theme} theme */
export function kindColor(kind, theme) {
  return PALETTES[theme][KINDS.find(({ id }) => id === kind)?.color ?? 0];
}

/**
 * From the first position to the last: orange over grey to blue.
 *
 * @param {number} part  0 to 1
 * @param {Theme} theme
 */
function positionColor(part, theme) {
  return hexOf(mixed([signColor(-1, theme), signColor(1, theme)], part));
}

/** A query is a disc, a key a diamond. @param {Pen} pen @param {[number, number]} place @param {Point} point @param {number} size @param {string} color @param {number} alpha */
function mark(pen, [x, y], { side }, size, color, alpha) {
  if (side === "query") pen.dot(x, y, size, color, alpha);
  else pen.diamond(x, y, size * 1.35, color, alpha);
}

/** The points of all texts, and of one that is pointed at its lines. @param {Pen} pen @param {number} width @param {number} height @param {Scene} scene */
function drawScatter(pen, width, height, { points, color, pointed, lines, own, theme, ink, soft }) {
  const at = (/** @type {Point} */ point) => placeOf(point, width, height);
  for (const point of points) mark(pen, at(point), point, SIZE, color(point), pointed && point.text !== pointed.text ? 0.18 : 0.75);
  for (const point of points) if (point.text === own) pen.ring(...at(point), SIZE + 2, theme === "dark" ? "#ffffff" : "#000000", 1, 0.5);
  if (!pointed) return;
  for (const { to, weight } of lines) {
    pen.line(...at(pointed), ...at(to), soft, 0.5 + 2.5 * weight, Math.sqrt(weight));
    mark(pen, at(to), to, SIZE + 1, color(to), 1);
  }
  mark(pen, at(pointed), pointed, SIZE + 2.5, color(pointed), 1);
  pen.ring(...at(pointed), SIZE + 4.5, ink, 1.5);
}

/** @param {Point} point @param {number} width @param {number} height @returns {[number, number]} */
export function placeOf({ x, y }, width, height) {
  return [MARGIN + x * (width - 2 * MARGIN), MARGIN + (1 - y) * (height - 2 * MARGIN)];
}

/**
 * The point nearest to a place, if one is near.
 *
 * @param {Point[]} points
 * @param {[number, number]} place
 * @param {number} width
 * @param {number} height
 */
export function nearestPoint(points, [x, y], width, height) {
  let found = /** @type {Point | null} */ (null);
  let best = NEAR ** 2;
  for (const point of points) {
    const [px, py] = placeOf(point, width, height);
    const apart = (px - x) ** 2 + (py - y) ** 2;
    if (apart > best) continue;
    best = apart;
    found = point;
  }
  return found;
}

const [WIDTH, HEIGHT, TOP] = [720, 460, 56];

/**
 * The picture to take away, with the places as a table.
 *
 * @param {string} title
 * @param {Scene} scene
 * @param {Collected} collected
 * @param {CssColors} colors
 * @returns {Figure}
 */
function jointFigure(title, scene, collected, { ink, soft, paper }) {
  return {
    name: "queries-and-keys",
    width: WIDTH,
    height: TOP + HEIGHT,
    paper,
    paint(pen) {
      pen.text(14, 30, title, { size: 14, color: ink, bold: true });
      pen.text(14, 48, "disc: query, diamond: key", { size: 12, color: soft });
      drawScatter(moved(pen, 0, TOP), WIDTH, HEIGHT, scene);
    },
    columns: ["side", "text", "position", "token", "x", "y"],
    *rows() {
      for (const { side, text, index, x, y } of scene.points) yield [side, text, index, collected.from[text].tokens.text[index], x, y];
    },
  };
}
