/**
 * The head view: tokens twice, and between them a line for each weight in the colour of its head.
 *
 * Two sheets lie under the tokens. The lower one has every line and is drawn when layer, heads or
 * filters change; the upper one has those of one token, on each move of the pointer.
 *
 * @import { Focus, Shown, Side } from "../../core/data/attention.js"
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example, Layer } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { State } from "../../core/state/state.js"
 * @import { Drawing, Geometry, Look } from "./lines.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { codeAt, codeOfStrongest, firstCode, gatherLines, largest, lineAlpha, meanWeights, opposite, shownTokens, strengthFor, weightOf } from "../../core/data/attention.js";
import { hasLayer } from "../../core/data/thumbnails.js";
import { sentenceOf } from "../../core/data/sentence.js";
import { grouping, ONE_WAY, windowsOf } from "../../core/data/sharing.js";
import { headColor, withAlpha } from "../../core/draw/colors.js";
import { button } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { afterClick, keptToken, placesOf, tokenKey } from "../../core/state/state.js";
import { percent, running } from "../../core/text/text.js";
import { bar, boundsText, difference, facts, KEYS, large, legendOf, WHY } from "../../marks/cards.js";
import { LOW_ROW, rowHeight, Rows, tokenOf } from "../../marks/rows.js";
import { lineWidth, MOST_LINES, paintKey, paintLines, Sheet } from "./lines.js";

/** How many weights are written out, and the least of them. */
const WRITTEN = 5;
const LEAST_WRITTEN = 0.005;

/**
 * @typedef {object} Scene  all that a drawing depends on
 * @property {Tokens} tokens  those that look
 * @property {Tokens} keyTokens
 * @property {Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {Shown} shown
 * @property {number} minimum  percent
 * @property {number} usual  the minimum that the page began with
 * @property {Look} look
 * @property {Geometry} geometry
 */

class HeadView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example, limits, ended } = stage;
    this.usual = limits.minimum;
    this.columns = new Columns(example);
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
    this.turn = 0;
    this.drawnLower = "";
    this.legend = createLegend(example, limits.examples);
    this.side = [this.card.root, this.legend.root];
    this.listen(ended);
  }

  /** Shows the store's state. */
  async update() {
    const { layer, heads } = this.store.get();
    this.legend.setStrength(strengthFor(heads.length, this.focus() !== null));
    this.turn += 1;
    const now = this.turn;
    this.card.there = null;
    const read = await this.example.layer(layer, placesOf(this.store, this.example));
    if (now !== this.turn) return;
    this.layer = read;
    this.paint();
    if ((await this.card.read(layer)) && now === this.turn && this.focus()) this.paint();
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

  /** On a token: as `afterClick` says; beside them all: lets go. @param {MouseEvent} event */
  click(event) {
    const token = tokenOf(event.target);
    if (token) return this.store.set(afterClick(this.store.get(), token));
    const { activeElement } = /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
    if (activeElement instanceof HTMLElement) activeElement.blur();
    return this.store.set({ query: null, key: null });
  }

  says() {
    if (!this.layer) return [];
    const { query, key, filter, special } = this.store.get();
    // Without the geometry of a scene, for which the page would be laid out once more.
    const shown = shownTokens(this.example.tokens, filter, special, this.example.keyTokens);
    return sentenceOf({ example: this.example, layer: this.layer, heads: placesOf(this.store, this.example), shown, query, key });
  }

  /** The picture to take away. */
  async figure() {
    await this.update();
    const sheet = this.focus() ? this.upper : this.lower;
    const drawing = /** @type {Drawing} */ (sheet.drawing);
    const { layer: { number, codes, nQueries, nKeys }, places, heads, look: { numbers } } = drawing;
    const { tokens, keyTokens } = this.example;
    const one = heads.length === 1 ? numbers[heads[0]] : null;
    const table = {
      name: `attention-layer-${number}${one === null ? "" : `-head-${one}`}`,
      columns: ["layer", "head", "query", "query token", "key", "key token", "weight"],
      *rows() {
        for (const place of Uint32Array.from(places).sort()) {
          const [query, key] = [Math.floor(place / nKeys) % nQueries, place % nKeys];
          // A code says no more than three digits.
          const weight = Number(weightOf(codes[place]).toPrecision(3));
          yield [number, numbers[Math.floor(place / (nKeys * nQueries))], query, tokens.text[query], key, keyTokens.text[key], weight];
        }
      },
    };
    const title = `Layer ${number}${one === null ? "" : `, head ${one}`}`;
    return pageFigure(this.root, title, table, new Map([[this.between, (pen) => [paintLines, paintKey].forEach((paint) => paint(pen, drawing))]]));
  }

  /** The keys that mean a token here. @param {KeyboardEvent} event @returns {boolean} */
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
    return keptToken(this.store.get()) ?? this.store.pointed.get();
  }

  paint() {
    if (!this.layer || !this.stage.isConnected) return;
    const scene = this.scene(this.layer);
    const focus = this.focus();
    this.stage.classList.toggle("focused", focus !== null);
    this.paintLower(scene);
    this.paintUpper(scene, focus);
    this.columns.mark(scene.shown, focus, this.store.get());
    shadeTokens(this.columns, scene, focus);
  }

  /** @param {Layer} layer @returns {Scene} */
  scene(layer) {
    const { tokens, keyTokens, heads: numbers } = this.example;
    const { heads, filter, special, minimum } = this.store.get();
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
      look: { numbers, theme: this.theme(), strength },
      geometry: { width: clientWidth, height: clientHeight, middles, row },
    };
  }

  /** @param {Scene} scene */
  paintLower(scene) {
    const { layer, heads, shown, minimum, look, geometry } = scene;
    const { filter, special } = this.store.get();
    const drawn = [layer.number, heads, filter, special, minimum, look.theme, geometry.width, geometry.height].join(" ");
    if (drawn === this.drawnLower) return;
    this.drawnLower = drawn;
    const strength = strengthFor(heads.length, false);
    const least = leastDrawn(scene, strength, null);
    const places = gatherLines(layer, heads, shown, least, null);
    this.lower.root.setAttribute("aria-label", `Layer ${layer.number}: ${places.length} attention lines`);
    this.empty.textContent = whyFew(places.length, heads, minimum, least);
    this.lower.draw({ layer, places, heads, bright: places.length, geometry, look: { ...look, strength } });
    this.stage.dataset.layer = String(layer.number);
  }

  /** @param {Scene} scene @param {Focus | null} focus */
  paintUpper(scene, focus) {
    if (!focus) {
      this.columns.write(null);
      this.card.hint();
      return this.upper.draw(null);
    }
    const { layer, heads, shown, look, geometry } = scene;
    const places = gatherLines(layer, heads, shown, leastDrawn(scene, look.strength, focus), focus);
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
    const state = this.store.get();
    if (state[focus.side] === focus.index && state[opposite(focus.side)] !== null) return state[opposite(focus.side)];
    const pointed = this.store.pointed.get();
    return pointed?.side === opposite(focus.side) ? pointed.index : null;
  }
}

/** @type {Kind} */
export const headKind = {
  id: "head",
  label: "Head",
  title: "A line from each token to the tokens it looks at, in the colour of the head",
  missing: (example) =>
    example.layers.every((layer) => hasLayer(example, layer)) ? "" : "This page holds no single weights, only an overview.",
  oneHead: false,
  controls: ["layer", "heads", "filter", "minimum", "special"],
  create: (stage) => new HeadView(stage),
};

/**
 * @typedef {object} There  the same weights in the text that this one is compared with
 * @property {Layer} layer
 * @property {number[]} heads  places in its head axis
 * @property {string} name
 */

/** The weights of the token in focus in numbers, or one of them, beside those of the text that this one is compared with. */
class HeadCard {
  /** @param {Stage} stage */
  constructor({ example, store, limits, against }) {
    this.worked = limits.views.includes("arithmetic");
    this.example = example;
    this.store = store;
    this.against = against;
    this.root = element("div", { role: "group", class: "details", "aria-live": "polite", "aria-label": "Weights in numbers" });
    /** @type {There | null} */
    this.there = null;
  }

  /** Reads the same weights of the text that this one is compared with, where it has them. @param {number} layer @returns {Promise<boolean>}  whether they are there */
  async read(layer) {
    this.there = null;
    const other = this.against();
    const words = (/** @type {Example | null} */ one) => JSON.stringify([one?.tokens.text, one?.keyTokens.text]);
    if (!other || words(other) !== words(this.example)) return false;
    const heads = placesOf(this.store, other);
    if (!other.layers.includes(layer) || !hasLayer(other, layer) || heads.includes(-1)) return false;
    const { name } = other.header;
    this.there = { layer: await other.layer(layer, heads), heads, name: name ? running(name) : "the first" };
    return true;
  }

  /** @param {string} kind @param {(Node | string)[]} parts */
  fill(kind, ...parts) {
    this.root.dataset.shows = kind;
    // What is there already stays: a button that is being pressed would be gone before it is let go.
    const made = /** @type {HTMLElement} */ (this.root.cloneNode());
    made.replaceChildren(...parts);
    if (made.isEqualNode(this.root)) return;
    const used = this.root.matches(":focus-within");
    this.root.replaceChildren(...parts);
    if (used) this.root.querySelector("button")?.focus();
  }

  /** @param {string | Node} name @param {Partial<State>} change  what it chooses @param {string} [kind] */
  way(name, change, kind = "to-weight") {
    return button(name, () => this.store.set(change), { class: kind, "data-to": JSON.stringify(change) });
  }

  hint() {
    this.fill("hint", element("p", { class: "hint" }, ["Point at a token to see only its weights. Click it to keep them."]));
  }

  /**
   * @param {Scene} scene
   * @param {Focus} focus
   * @param {number | null} other  the token opposite that was chosen too
   * @param {Float64Array} means
   * @param {number[]} places  the largest of them
   */
  write(scene, focus, other, means, places) {
    const there = this.there?.layer.number === scene.layer.number ? this.there : null;
    if (other !== null) return this.writeWeight(scene, there, focus, other);
    const { tokens, keyTokens, heads, layer, look, shown } = scene;
    const [own, others] = focus.side === "query" ? [tokens, keyTokens] : [keyTokens, tokens];
    const before = there && meanWeights(there.layer, there.heads, shown, focus);
    const color = heads.length === 1 ? headColor(look.numbers[heads[0]], look.theme) : "";
    const rows = places.map((i) => bar(this.way(tokenChip(others, i, 40), { [opposite(focus.side)]: i }), means[i], { color, before: before?.[i] }));
    if (focus.side === "query" && rows.length) {
      const rest = means.reduce((sum, weight) => sum + weight, 0) - places.reduce((sum, i) => sum + means[i], 0);
      rows.push(bar("the others", Math.max(rest, 0), { color, kind: "rest" }));
    }
    const which = heads.length === 1 ? `head ${look.numbers[heads[0]]}` : `mean of ${heads.length} heads`;
    return this.fill(
      "token",
      element("p", { class: "where" }, [`Layer ${layer.number}, ${which}, rounded to 0.4\u202f%`]),
      element("h2", {}, [tokenChip(own, focus.index), focus.side === "query" ? " looks at" : " is looked at by"]),
      bars(rows, heads, there),
    );
  }

  /** @param {Scene} scene @param {There | null} there @param {Focus} focus @param {number} other  the token opposite the focus */
  writeWeight({ tokens, keyTokens, layer, heads, look }, there, focus, other) {
    const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
    const codes = heads.map((head) => codeAt(layer, head, focus, other));
    const before = there?.heads.map((head) => weightOf(codeAt(there.layer, head, focus, other)));
    const one = heads.length === 1;
    const weight = weightOf(codes[0]);
    const compared = one && there && before ? [[there.name, percent(before[0])], ["difference", `${difference(weight, before[0])} points`]] : [];
    const why = (/** @type {number} */ head) => ({ view: "arithmetic", level: "", layer: layer.number, heads: [look.numbers[head]], query, key });
    const strongest = heads[codes.indexOf(Math.max(...codes))];
    const name = (/** @type {number} */ head) => (this.worked ? this.way(`head ${look.numbers[head]}`, why(head)) : `head ${look.numbers[head]}`);
    const perHead = heads.map((head, i) => bar(name(head), weightOf(codes[i]), { color: headColor(look.numbers[head], look.theme), before: before?.[i] }));
    this.fill(
      "weight",
      element("p", { class: "where" }, [one ? `Layer ${layer.number}, head ${look.numbers[heads[0]]}` : `Layer ${layer.number}`]),
      element("h2", {}, [tokenChip(tokens, query), " looks at ", tokenChip(keyTokens, key)]),
      one ? large(weight, percent(weight), boundsText(codes[0])) : bars(perHead, heads, there, "heads"),
      ...(this.worked && heads.length ? [this.way(one ? WHY : `${WHY} (head ${look.numbers[strongest]})`, why(strongest), "quiet")] : []),
      facts([...compared, ["query", `token ${query}`], ["key", `token ${key}`], ["probability", "rounded to 0.4\u202f%"]]),
    );
  }
}

/** Bars, or why there are none. @param {HTMLElement[]} rows @param {number[]} heads  that are on @param {There | null} there @param {string} [kind] */
function bars(rows, heads, there, kind = "") {
  if (!rows.length) return element("p", { class: "hint" }, [heads.length ? "No weight that is shown here." : "No head is switched on."]);
  const list = element("ul", { class: `bars ${kind}${there ? " compared" : ""}` }, rows);
  if (!there) return list;
  return element("div", {}, [element("p", { class: "where" }, ["± points from ", element("bdi", {}, [there.name])]), list]);
}

/**
 * The two columns of tokens: the one that looks on the left, the one looked at on the right.
 */

class Columns {
  /** @param {Example} example */
  constructor(example) {
    const [from, to] = sideNames(example).map((name) => name && `: ${name}`);
    this.row = rowHeight(example);
    this.query = new Rows(example.tokens, "query", `Tokens that look (query)${from}`, this.row);
    this.key = new Rows(example.keyTokens, "key", `Tokens that are looked at (key)${to}`, this.row);
    this.middles = { query: this.query.middles, key: this.key.middles };
    /** The weights that stand beside the tokens. @type {HTMLElement[]} */
    this.written = [];
  }

  /**
   * Marks the tokens: kept, in focus, taking part.
   *
   * @param {Shown} shown
   * @param {Focus | null} focus
   * @param {Record<Side, number | null>} kept
   */
  mark(shown, focus, kept) {
    for (const side of /** @type {Side[]} */ (["query", "key"])) {
      this[side].mark(focus?.side === side ? focus.index : -1, kept[side]);
      this[side].items.forEach((item, i) => item.classList.toggle("out", !shown[side][i]));
    }
  }

  /**
   * Writes weights beside the tokens opposite the focus.
   *
   * @param {Focus | null} focus
   * @param {ArrayLike<number>} [means]
   * @param {number[]} [places]
   */
  write(focus, means = [], places = []) {
    for (const weight of this.written) weight.remove();
    this.written = places.map((i) => element("data", { class: "weight", value: String(means[i]) }, [percent(means[i])]));
    places.forEach((place, i) => focus && this[opposite(focus.side)].items[place].append(this.written[i]));
  }

  /** The token that has the focus; Tab comes back to it. @param {EventTarget | null} target */
  focused(target) {
    const token = tokenOf(target);
    if (token) this[token.side].stop = token.index;
    return token;
  }

  /** Gives the keyboard's focus to a token; only it stays in the tab order of its column. @param {Focus} token */
  focus({ side, index }) {
    this[side].stop = index;
    this[side].items[index].focus();
  }
}

/** The darkest shade; text on it stays readable. */
const DARKEST = 0.6;

/** Shades that nobody sees need not be there: a long text has thousands of them. */
const FAINTEST = 0.012;

/** @param {Columns} columns @param {Scene} scene @param {Focus | null} focus */
function shadeTokens(columns, scene, focus) {
  const shaded = focus && scene.shown[focus.side][focus.index] ? opposite(focus.side) : null;
  const band = focus && bandMaker(scene, focus);
  for (const side of /** @type {const} */ (["query", "key"])) {
    columns[side].items.forEach((item, i) => item.style.setProperty("--bands", band && side === shaded && scene.shown[side][i] ? band(i) : ""));
  }
}

/**
 * Gives the bands of a token as a CSS image, or "" when none of them can be seen.
 *
 * @param {Scene} scene
 * @param {Focus} focus
 * @returns {(other: number) => string}
 */
function bandMaker({ layer, heads, look }, focus) {
  const alphas = Array.from({ length: 256 }, (_, code) => lineAlpha(weightOf(code), look.strength) * DARKEST);
  const stop = (/** @type {number} */ code, /** @type {number} */ i) => {
    const color = withAlpha(headColor(look.numbers[heads[i]], look.theme), alphas[code]);
    return `${color} ${(100 * i) / heads.length}% ${(100 * (i + 1)) / heads.length}%`;
  };
  return (other) => {
    const codes = heads.map((head) => codeAt(layer, head, focus, other));
    if (codes.every((code) => alphas[code] < FAINTEST)) return "";
    return `linear-gradient(90deg, ${codes.map(stop).join(", ")})`;
  };
}

const SAMPLES = [0.05, 0.2, 0.5, 1];

/**
 * @param {Example} example
 * @param {number} examples  texts on the page
 * @returns {{root: HTMLElement, setStrength: (strength: number) => void}}
 */
function createLegend(example, examples) {
  const { causal, normalised } = example;
  const strokes = SAMPLES.map(() => element("span", { class: "stroke" }));
  const samples = SAMPLES.map((weight, i) =>
    element("li", {}, [strokes[i], percent(weight).replace(".0", "")]),
  );
  const parts = [
    "A line is one attention weight: how much the token on the left looks at the token on the right. The stronger and wider the line, the more.",
    element("ul", { class: "samples" }, samples),
    normalised
      ? "The colour is the head. In each head, the weights of a token on the left add up to 100\u202f%."
      : "The colour is the head.",
    "Hiding tokens or weights does not change the others.",
    causal ? ONE_WAY : "",
    windowsOf(example),
    grouping(example),
  ];
  const root = legendOf(parts, examples > 1 ? { ...KEYS, "N P": "next, previous text" } : KEYS);
  return {
    root,
    setStrength(strength) {
      SAMPLES.forEach((weight, i) => {
        strokes[i].style.height = `${lineWidth(weight)}px`;
        strokes[i].style.opacity = String(lineAlpha(weight, strength));
      });
    },
  };
}

/**
 * The lines with those in front that end at the chosen token, and how many these are; all when
 * none is chosen.
 *
 * @param {Uint32Array} places
 * @param {Layer} layer
 * @param {Focus} focus
 * @param {number | null} other
 * @returns {{places: Uint32Array, bright: number}}
 */
function chosenFirst(places, { nQueries, nKeys }, { side }, other) {
  const end = (/** @type {number} */ place) =>
    side === "query" ? place % nKeys : Math.floor(place / nKeys) % nQueries;
  if (other === null) return { places, bright: places.length };
  const front = places.filter((place) => end(place) === other);
  const sorted = Uint32Array.from([...front, ...places.filter((place) => end(place) !== other)]);
  return { places: sorted, bright: front.length };
}

/** Lines of a token that are drawn however faint they are; of a text, one for each token. */
const FEW = 5;

/**
 * The first code that is drawn. The threshold that the page chose itself gives way where it leaves
 * next to nothing.
 *
 * @param {Pick<Scene, "layer" | "heads" | "shown" | "minimum" | "usual">} scene
 * @param {number} strength
 * @param {Focus | null} focus
 */
function leastDrawn({ layer, heads, shown, minimum, usual }, strength, focus) {
  const asked = firstCode(minimum, strength);
  if (!minimum || minimum !== usual) return asked;
  return Math.min(asked, codeOfStrongest(layer, heads, shown, focus ? FEW : layer.nQueries, focus));
}

/** A whole number with commas. `toLocaleString` takes longer than all lines of a short text: it loads a language first. @param {number} number */
const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");

/**
 * What is to be said of the lines: why there are none, or that they are below the threshold.
 *
 * @param {number} count
 * @param {number[]} heads
 * @param {number} minimum  percent
 * @param {number} least  the first code that is drawn
 */
function whyFew(count, heads, minimum, least) {
  const reached = weightOf(least) * 100;
  if (count > MOST_LINES) return `The strongest ${grouped(MOST_LINES)} of ${grouped(count)} lines are drawn.`;
  if (count && reached >= minimum) return "";
  if (count) return `Few weights here reach ${minimum}\u202f%: the strongest are drawn, from ${reached.toFixed(1)}\u202f% up.`;
  if (!heads.length) return "No lines: no head is switched on.";
  if (!minimum) return "No lines: every weight that is shown here is too small to see.";
  return `No lines: every weight that is shown here is below ${minimum}\u202f%.`;
}

/**
 * Which tokens stand on which side, as the example's name has it ("decoder → encoder").
 *
 * @param {Example} example
 * @returns {[string, string]}
 */
function sideNames({ header, tokens, keyTokens }) {
  const [from, to, ...more] = header.name.split(/\s*(?:→|->)\s*/);
  return keyTokens === tokens || !from || !to || more.length ? ["", ""] : [running(from), running(to)];
}

/** @param {Example} example */
function captions(example) {
  const [from, to] = sideNames(example);
  return element("div", { class: "captions", "aria-hidden": "true" }, [
    element("p", {}, [element("strong", {}, ["the token that looks"]), from ? ` ${from}, query` : " query"]),
    element("p", {}, [element("strong", {}, ["where it looks"]), to ? ` ${to}, key` : " key"]),
  ]);
}
