/**
 * The report of a survey: its parts one below the other, about one chosen head.
 *
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Figure } from "../../core/export/figure.js"
 * @import { Address } from "../../core/frame/frame.js"
 * @import { Header, Pattern, PatternExample, PatternHead, State, Store } from "./data.js"
 */

import { button } from "../../core/draw/controls.js";
import { cssColors } from "../../core/draw/canvas.js";
import { element } from "../../core/draw/dom.js";
import { createExport } from "../../core/export/export.js";
import { paintOn } from "../../core/export/pens.js";
import { holdState } from "../../core/state/state.js";
import { counted, short } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";
import { fromHash, Survey, toHash } from "./data.js";
import { gridPart, layersPart, profilePart } from "./figures.js";

/** Rows of a table of edges. */
const EDGES = 10;

/** The measures that the grid begins with: the first that is there. */
const FIRST = ["to_previous", "to_sep", "entropy"];

/** @param {HTMLElement} host @param {Header} header @param {Address} address */
export function mountReport(host, header, address) {
  const survey = new Survey(header);
  const measure = FIRST.find((name) => survey.found(name)) ?? survey.measures[0].name;
  const best = survey.byName.get(measure)?.mean.reduce((/** @type {number} */ most, value, place, all) => ((value ?? -1) > (all[most] ?? -1) ? place : most), 0);
  /** @type {State} */
  const start = { theme: "auto", place: best ?? 0, measure };
  const known = { nLayers: survey.nLayers, nHeads: survey.nHeads, measures: [...survey.byName.keys()] };
  const store = holdState(fromHash(address.read(), start, known));
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const chosen = store.get().theme;
    if (chosen !== "auto") return chosen;
    return darkness.matches ? "dark" : "light";
  };
  const switcher = button("", () => store.set({ theme: theme() === "dark" ? "light" : "dark" }), { class: "theme" });
  const parts = [gridPart(survey, store), layersPart(survey), profilePart(survey)];
  const sections = parts.flatMap((part) => (part ? [new Section(part, survey, store, theme)] : []));
  const update = () => {
    host.dataset.theme = theme();
    const other = theme() === "dark" ? "light" : "dark";
    switcher.textContent = other === "dark" ? "Dark" : "Light";
    switcher.setAttribute("aria-label", `Switch to ${other} colours`);
    for (const section of sections) section.update();
    address.write(toHash(store.get(), start, survey.nHeads));
  };
  const patterns = createPatterns(survey, store);
  const [grid, ...others] = sections.map(({ root }) => root);
  host.classList.add("minibert", "report");
  host.append(switcher, createTop(header), grid, ...(patterns ? [patterns] : []), ...createEdges(survey, store), ...others, createFacts(header));
  store.subscribe(update);
  darkness.addEventListener("change", update);
  address.listen(() => store.set(fromHash(address.read(), start, known)));
  update();
}

/** @param {Header} header */
function createTop({ title, size, notes }) {
  return element("header", { class: "heading" }, [
    element("h1", {}, ["What the heads of a model do"]),
    element("div", { class: "texts" }, [element("p", { class: "text" }, [element("bdi", {}, [running(title)])])]),
    element("p", { class: "sizes" }, [running(size)]),
    ...notes.map((note) => element("p", { class: "note" }, [running(note)])),
  ]);
}

/** @param {Header} header */
function createFacts({ facts, command }) {
  const rows = facts.flatMap(([name, value]) => [
    element("dt", {}, [running(name)]),
    element("dd", {}, [element("bdi", {}, [running(value)])]),
  ]);
  const again = command
    ? [element("h3", {}, ["To do it again"]), element("pre", {}, [element("code", {}, [running(command)])])]
    : [];
  return element("section", { class: "part", "aria-labelledby": "surveyed" }, [
    element("h2", { id: "surveyed" }, ["What was surveyed"]),
    element("dl", { class: "facts" }, rows),
    ...again,
  ]);
}

/**
 * A part of the report: a heading, a sentence that says what is seen, and a figure whose heads can
 * be pointed at, chosen and walked through by keys, and which can be saved.
 *
 * @typedef {{x: number, y: number, place: number, panel: number}} Point
 *
 * @typedef {object} Drawing
 * @property {Figure} figure
 * @property {Point[]} points  of heads, in the figure
 * @property {(point: Point) => string} said  what a point says of its head
 * @property {string} sentence
 *
 * @typedef {object} Look  what a drawing depends on
 * @property {number} width  CSS pixels
 * @property {"light" | "dark"} theme
 * @property {CssColors} colors
 * @property {State} state
 *
 * @typedef {object} Part
 * @property {string} id
 * @property {string} heading
 * @property {HTMLElement[]} [controls]
 * @property {(state: State) => void} [update]  of its controls
 * @property {(look: Look) => Drawing} draw
 * @property {HTMLElement[]} [below]
 * @property {() => void} [opened]  after a head was chosen in it by a click or by Enter
 * @property {boolean} [onlyPointed]  points say something only while a pointer is there
 * @property {number} [room]  CSS pixels beside a point that belong to it
 */

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
/** CSS pixels from a point within which a pointer means it. */
const NEAR = 18;
/** Pixels of the canvas in a CSS pixel, at least: figures are printed, too. */
const SHARP = 2;

class Section {
  /** @param {Part} part @param {Survey} survey @param {Store} store @param {() => "light" | "dark"} theme */
  constructor(part, survey, store, theme) {
    this.part = part;
    this.survey = survey;
    this.store = store;
    this.theme = theme;
    this.drawing = /** @type {Drawing | null} */ (null);
    this.painted = "";
    this.sentence = element("p", { class: "seen" });
    this.canvas = element("canvas");
    this.board = element("div", { class: "board", tabindex: "0", role: "application" }, [this.canvas]);
    this.readout = element("p", { class: "readout" });
    const view = { figure: async () => this.draw().figure };
    this.giving = createExport(() => [{ name: part.id, view }]);
    const { controls = [], below = [] } = part;
    const top = element("div", { class: "top" }, [element("h2", { id: part.id }, [part.heading]), this.giving.root]);
    const tools = element("div", { class: "tools" }, controls);
    this.root = element("section", { class: "part", "aria-labelledby": part.id }, [
      top, this.sentence, tools, this.board, this.readout, ...below,
    ]);
    this.listen();
  }

  listen() {
    this.board.addEventListener("pointermove", (event) => this.point(this.at(event)));
    this.board.addEventListener("pointerleave", () => this.point(null));
    this.board.addEventListener("click", (event) => {
      const point = this.at(event);
      if (point) this.choose(point.place);
    });
    this.board.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const step = STEPS[event.key];
      if (step) this.walk(step);
      else if (event.key === "Enter") this.part.opened?.();
      if (step || event.key === "Enter") event.preventDefault();
    });
    // All figures follow the chosen head, and only the one in use is to be read out.
    this.board.addEventListener("focus", () => (this.readout.ariaLive = "polite"));
    this.board.addEventListener("blur", () => (this.readout.ariaLive = "off"));
    new ResizeObserver(() => this.update()).observe(this.board);
  }

  /** @param {[number, number]} step  layers and heads */
  walk([down, across]) {
    const { nLayers, nHeads } = this.survey;
    const { place } = this.store.get();
    const layer = Math.floor(place / nHeads) + down;
    const head = (place % nHeads) + across;
    if (layer < 0 || layer >= nLayers || head < 0 || head >= nHeads) return;
    this.store.set({ place: layer * nHeads + head });
  }

  /** @param {number} place */
  choose(place) {
    this.store.set({ place });
    this.part.opened?.();
  }

  /** The head at the pointer. @param {MouseEvent} event */
  at({ clientX, clientY }) {
    const box = this.board.getBoundingClientRect();
    const [x, y] = [clientX - box.left, clientY - box.top];
    const apart = (/** @type {Point} */ point) => Math.hypot(point.x - x, point.y - y);
    const points = this.drawing?.points ?? [];
    const nearest = points.reduce((/** @type {Point | null} */ best, one) => (best && apart(best) <= apart(one) ? best : one), null);
    return nearest && apart(nearest) <= (this.part.room ?? NEAR) ? nearest : null;
  }

  /** Says what a point is, or of none what the chosen head is. @param {Point | null} point */
  point(point) {
    const { place } = this.store.get();
    const points = this.part.onlyPointed ? [] : this.drawing?.points ?? [];
    const chosen = points.filter((one) => one.place === place);
    const shown = point ? [point] : chosen;
    const parts = shown.map((one) => this.drawing?.said(one)).join("; ");
    const text = shown.length ? `Head ${this.survey.nameOf(shown[0].place)}: ${parts}` : "";
    if (this.readout.textContent !== text) this.readout.textContent = text;
    this.board.classList.toggle("pointing", point !== null);
  }

  /** @returns {Drawing} */
  draw() {
    const width = Math.max(240, this.board.clientWidth);
    return this.part.draw({ width, theme: this.theme(), colors: cssColors(this.root), state: this.store.get() });
  }

  update() {
    if (!this.root.isConnected) return;
    const state = this.store.get();
    this.part.update?.(state);
    this.giving.update();
    const wanted = [this.board.clientWidth, devicePixelRatio, this.theme(), JSON.stringify(state)].join(" ");
    if (wanted === this.painted) return;
    this.painted = wanted;
    this.drawing = this.draw();
    const { figure, sentence } = this.drawing;
    this.sentence.textContent = sentence;
    paintOn(this.canvas, figure, Math.max(SHARP, devicePixelRatio || 1));
    this.canvas.style.width = `${figure.width}px`;
    this.canvas.style.height = `${figure.height}px`;
    this.board.setAttribute("aria-label", `${sentence} Arrow keys go from head to head.`);
    this.board.dataset.drawn = "true";
    this.point(null);
  }
}

/** Heads of a pattern that have a row each. */
const SHOWN = 8;

/** @param {Survey} survey @param {Store} store */
function createPatterns(survey, store) {
  const { patterns } = survey.header;
  if (!patterns.length) return null;
  const rows = patterns.flatMap((pattern) => rowsOf(survey, store, pattern));
  const titles = ["Looks at", "Head", "Score", "95\u202f% interval", "Without it", "Examples"];
  const head = element("thead", {}, [element("tr", {}, titles.map((title) => element("th", { scope: "col" }, [title])))]);
  const table = element("table", { class: "patterns" }, [head, ...rows]);
  const note = element("p", { class: "note" }, [
    "A head in bold is known by the pattern: its whole interval is above the middle between “Without it” and 100\u202f%. For all words alike it is enough to be above “Without it”.",
  ]);
  return element("section", { class: "part", "aria-labelledby": "patterns" }, [
    element("h2", { id: "patterns" }, ["What heads are known by"]),
    element("p", { class: "seen" }, [patternsSaid(survey)]),
    table,
    note,
  ]);
}

/** What an edge's number is, by its side. */
const FED = {
  query: ["queries", "score of the tokens that the head looks at, less that of all it may see"],
  key: ["keys", "the same score, by what stands at those tokens"],
  value: ["values", "share of what the head moves"],
};

/** Who feeds whom: a table for the queries, the keys and the values of heads. @param {Survey} survey @param {Store} store */
function createEdges(survey, store) {
  const { edges } = survey.header;
  if (!edges.length) return [];
  const tables = Object.entries(FED).map(([side, [name, unit]]) => {
    const titles = ["Written by", "For head", "How much", "By weights alone"];
    const head = element("thead", {}, [element("tr", {}, titles.map((title) => element("th", { scope: "col" }, [title])))]);
    const rows = edges.filter((edge) => edge[0] === side).slice(0, EDGES).map(([, source, place, number, weights]) =>
      element("tr", {}, [
        element("th", { scope: "row" }, [source.replace("-", "\u2011")]),
        element("td", {}, [toHead(survey, store, place)]),
        element("td", {}, [side === "value" ? percent(number) : short(number)]),
        element("td", {}, [weights === null ? "–" : short(weights)]),
      ]),
    );
    return element("div", {}, [
      element("h3", {}, [`Their ${name}`]),
      element("p", { class: "note" }, [unit]),
      element("table", { class: "fed" }, [head, element("tbody", {}, rows)]),
    ]);
  });
  return [
    element("section", { class: "part edges", "aria-labelledby": "edges" }, [
      element("h2", { id: "edges" }, ["Who feeds these heads"]),
      element("p", { class: "seen" }, ["Queries, keys and values are sums of what embeddings, heads and MLPs wrote. These parts are the largest over the corpus; the last column is the composition score of two heads."]),
      element("div", { class: "sides" }, tables),
    ]),
  ];
}

/** @param {Survey} survey @param {Store} store @param {Pattern} pattern */
function rowsOf(survey, store, pattern) {
  const name = element("th", { scope: "rowgroup" }, [running(pattern.words)]);
  name.title = running(pattern.source);
  const rows = pattern.heads.slice(0, SHOWN).map((head) => cellsOf(survey, store, pattern, head));
  const others = pattern.heads.slice(SHOWN).map(({ place }) => toHead(survey, store, place));
  if (others.length) rows.push([across([`and ${others.length} more: `, ...others])]);
  if (!rows.length) rows.push([across(["not measured: no token sees such another"])]);
  name.rowSpan = rows.length;
  return [element("tbody", {}, rows.map((cells, i) => element("tr", {}, i ? cells : [name, ...cells])))];
}

/** A cell below all titles but the first. @param {(Node | string)[]} children */
function across(children) {
  const made = element("td", { class: "across" }, children);
  made.colSpan = 5;
  return made;
}

/** @param {Survey} survey @param {Store} store @param {number} place */
function toHead(survey, store, place) {
  return button(survey.nameOf(place), () => store.set({ place }), { class: "to-head", title: "Show this head in all figures" });
}

/** @param {Survey} survey @param {Store} store @param {Pattern} pattern @param {PatternHead} head */
function cellsOf(survey, store, { score, low, high, baseline }, { place, named, examples }) {
  const of = (/** @type {number | null} */ value) => (value === null ? "–" : percent(value));
  const chosen = toHead(survey, store, place);
  const cell = (/** @type {string} */ title, /** @type {(Node | string)[]} */ children) => element("td", { "data-title": title }, children);
  const interval = low[place] === null ? "–" : `${of(low[place])} to ${of(high[place])}`;
  const items = examples.map((one) => element("li", {}, [exampleOf(survey, place, one)]));
  return [
    cell("Head", [named ? element("strong", {}, [chosen]) : chosen]),
    cell("Score", [of(score[place])]),
    cell("95\u202f% interval", [interval]),
    cell("Without it", [of(baseline[place])]),
    cell("Examples", items.length ? [element("ul", {}, items)] : ["–"]),
  ];
}

/** @param {Survey} survey @param {number} place @param {PatternExample} example */
function exampleOf(survey, place, example) {
  const token = (/** @type {string} */ text) => element("bdi", {}, [visible(text.trim() || text, 24)]);
  const document = running(survey.header.documents[example.document]);
  const { query_token: query, key_token: key } = example;
  const shown = [token(query), " → ", token(key)];
  const href = survey.linkTo(example.document, place, example);
  const made = href ? element("a", { href, title: document }, shown) : element("span", { title: document }, shown);
  return element("span", {}, [made, ` ${percent(example.score)}`]);
}

/** @param {Survey} survey */
function patternsSaid({ header: { patterns }, size }) {
  const named = new Set(patterns.flatMap(({ heads }) => heads.filter((one) => one.named).map(({ place }) => place)));
  const counts = patterns.map(({ words, heads }) => ({ words, count: heads.filter((one) => one.named).length }));
  const most = counts.reduce((best, one) => (one.count > best.count ? one : best));
  const ending = most.count ? ` Most of them, ${most.count}, look at ${running(most.words)}.` : "";
  // Of any two tokens one stands before the other; other patterns have rows in few texts, or are measured on drawn ones.
  const documents = Math.max(...patterns.filter(({ name }) => name === "previous").map((one) => one.documents));
  return `Over ${counted(documents, "document")}, ${named.size} of ${size} heads are known by one of ${patterns.length} patterns.${ending}`;
}
