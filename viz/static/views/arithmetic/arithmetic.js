/**
 * The arithmetic view: one weight of one head, down to each multiplication.
 *
 * Everything is computed here from query, key and value, in double precision; each number that
 * is shown has all its digits in its `value` or `data-value`.
 *
 * @import { Focus } from "../../core/data/attention.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { BarPicture } from "./elements.js"
 * @import { Story } from "./story.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { weightOf } from "../../core/data/attention.js";
import { sharing } from "../../core/data/sharing.js";
import { dimensions, mixtureOf, pairOf, productsOf, sees, vectorOf, whyAbsent } from "../../core/data/softmax.js";
import { headColor, scaleFor, weightShade } from "../../core/draw/colors.js";
import { segments } from "../../core/draw/controls.js";
import { cssColors } from "../../core/draw/canvas.js";
import { element } from "../../core/draw/dom.js";
import { afterEscape } from "../../core/state/state.js";
import { numeral } from "../../marks/cards.js";
import { tokenOf } from "../../marks/rows.js";
import { dimensionAt } from "../../marks/strips.js";
import { drawPlot, numberTables, TokenPicker } from "./elements.js";
import { addUp, answer, arithmeticFigure, cap, mask, multiply, scaleDown, softmaxStep, takeAlong, turned, withoutValue } from "./story.js";

/**
 * @typedef {object} Plot  a picture of the numbers of all dimensions
 * @property {HTMLElement} root
 * @property {HTMLElement} readout
 * @property {(pointed?: number) => void} draw
 */

/** @type {{id: "dimension" | "size", label: string}[]} */
const ORDERS = [
  { id: "dimension", label: "By dimension" },
  { id: "size", label: "By size" },
];

class ArithmeticView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { example } = stage;
    this.pickers = {
      query: new TokenPicker(example.tokens, "query", "the token that looks"),
      key: new TokenPicker(example.keyTokens, "key", "where it looks"),
    };
    this.empty = element("p", { class: "empty", role: "status" });
    this.answer = element("div", { class: "sum-answer", "aria-live": "polite" });
    this.steps = element("ol", { class: "sum-steps" });
    const pickers = element("div", { class: "sum-pickers" }, [this.pickers.query.root, this.pickers.key.root]);
    this.content = element("div", {}, [this.answer, pickers, this.steps]);
    this.root = element("div", { class: "sum-view" }, [this.empty, this.content]);
    this.plots = /** @type {Plot[]} */ ([]);
    this.story = /** @type {Story | null} */ (null);
    /** Whether the numbers of a step are open, as its reader left them. */
    this.open = { products: true, values: false };
    this.switches = segments(ORDERS, (order) => this.store.set({ order }), "Order of the products");
    this.root.addEventListener("click", ({ target }) => {
      const token = tokenOf(target);
      if (token) this.choose(token);
    });
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.root);
  }

  /** Shows the store's state. */
  async update() {
    const asked = this.asked();
    const { layer, head } = asked;
    const [vectors, elsewhere] = await Promise.all([this.example.vectors(layer, head), this.codes(layer)]);
    if (!this.stillAsked(asked)) return;
    const now = this.store.get();
    this.empty.textContent = vectors ? "" : whyAbsent(this.example, layer, head);
    this.content.hidden = !vectors;
    this.story = null;
    if (!vectors) return;
    const { row, key } = pairOf(this.example, vectors, now);
    const place = (this.example.heads.indexOf(head) * vectors.nQueries + row.query) * vectors.nKeys + key;
    this.story = {
      example: this.example,
      vectors,
      row,
      key,
      products: productsOf(vectors, row.query, key),
      order: now.order,
      theme: this.theme(),
      color: headColor(head, this.theme()),
      where: `Layer ${layer}, head ${head}`,
      shared: sharing(this.example, head),
      elsewhere: elsewhere ? weightOf(elsewhere.codes[place]) : null,
    };
    this.tell(this.story);
    this.root.dataset.drawn = "true";
  }

  /** The weights after an edit, which do not follow from query and key. @param {number} layer */
  async codes(layer) {
    if (!this.example.header.edited || !this.example.entry("probs", layer)) return null;
    return this.example.layer(layer);
  }

  /** @param {Story} story */
  tell(story) {
    const { row, key, color } = story;
    this.answer.replaceChildren(...answer(story));
    this.pickers.query.show({ chosen: row.query, shade: null, masked: () => false });
    this.pickers.key.show({
      chosen: key,
      shade: (i) => weightShade(color, row.weights[i], this.theme()),
      masked: (i) => !sees(row, i),
    });
    this.switches.show(story.order);
    const products = this.productPlot(story);
    this.plots = [products];
    const steps = [
      multiply(story, products.root, products.readout, this.switches.root),
      addUp(story),
      ...turned(story),
      scaleDown(story),
      ...cap(story),
      mask(story),
      softmaxStep(story),
      this.valueStep(story),
    ];
    this.steps.replaceChildren(...steps);
    this.remember(steps[0], "products");
    this.draw();
  }

  /**
   * Leaves what can be unfolded as its reader left it.
   *
   * @param {HTMLElement} step
   * @param {"products" | "values"} name
   */
  remember(step, name) {
    const details = step.querySelector("details");
    if (!details) return;
    details.open = this.open[name];
    details.addEventListener("toggle", () => {
      this.open[name] = details.open;
    });
  }

  /** @param {Story} story */
  valueStep(story) {
    const { vectors, row, key } = story;
    if (!vectors.value || !sees(row, key)) return withoutValue(story);
    const value = vectorOf(vectors.value, key, vectors.width);
    const part = Float64Array.from(value, (number) => number * row.weights[key]);
    const z = mixtureOf(vectors.value, row.weights, vectors.width);
    const plot = this.valuePlot(story, value, part, z);
    this.plots.push(plot);
    const numbers = element("details", {}, [element("summary", {}, [`All ${vectors.width} dimensions in numbers`])]);
    // Many elements, and seldom looked at: made when they are.
    numbers.addEventListener("toggle", () => {
      if (!numbers.open || numbers.childElementCount > 1) return;
      const order = dimensions(part, story.order);
      numbers.append(numberTables("values", ["v", "weight × v", "z"], order, (i) => [value[i], part[i], z[i]]));
    });
    const step = takeAlong(story, plot.root, plot.readout, numbers);
    this.remember(step, "values");
    return step;
  }

  /** @param {Story} story @returns {Plot} */
  productPlot({ vectors, row, key, products, order, theme }) {
    const query = vectorOf(vectors.query, row.query, vectors.width);
    const keys = vectorOf(vectors.key, key, vectors.width);
    const scale = scaleFor(query, keys);
    const strips = [{ name: "q", numbers: query, scale }, { name: "k", numbers: keys, scale }];
    const sorted = dimensions(products, order);
    return createPlot({ strips, bars: products, order: sorted, theme, pointed: -1 }, "q × k", (i) => [
      numeral("q", query[i]),
      " × ",
      numeral("k", keys[i]),
      " = ",
      numeral("product", products[i]),
    ]);
  }

  /**
   * @param {Story} story
   * @param {Float32Array} value
   * @param {Float64Array} part
   * @param {Float64Array} z
   * @returns {Plot}
   */
  valuePlot({ order, theme, row, key }, value, part, z) {
    const scale = scaleFor(value, z);
    const strips = [{ name: "v", numbers: value, scale }, { name: "z", numbers: z, scale }];
    const sorted = dimensions(part, order);
    return createPlot({ strips, bars: part, order: sorted, theme, pointed: -1 }, "weight × v", (i) => [
      numeral("part", row.weights[key], row.weights[key].toFixed(4)),
      " × ",
      numeral("v", value[i]),
      " = ",
      numeral("contribution", part[i]),
      "; with all other keys: ",
      numeral("z", z[i]),
    ]);
  }

  draw() {
    if (!this.story || !this.root.isConnected) return;
    for (const plot of this.plots) plot.draw();
  }

  /** @param {Focus} token */
  choose({ side, index }) {
    if (!this.story) return;
    const query = side === "query" ? index : this.story.row.query;
    const { key } = this.store.get();
    this.store.set({ query, key: side === "key" ? index : key, anchor: "query" });
    this.pickers[side].items.get(index)?.focus({ preventScroll: true });
  }

  /** The keys that mean a token here. @param {KeyboardEvent} event @returns {boolean} */
  keydown({ key, target }) {
    if (key === "Escape") {
      this.store.set(afterEscape(this.store.get()));
      return true;
    }
    const token = tokenOf(target);
    if (!token || !this.story) return false;
    if (key === "Enter" || key === " ") {
      this.choose(token);
      return true;
    }
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[key];
    if (!by) return false;
    const last = (token.side === "query" ? this.example.tokens : this.example.keyTokens).text.length - 1;
    const index = Math.max(0, Math.min(last, token.index + by));
    this.choose({ side: token.side, index });
    this.pickers[token.side].items.get(index)?.focus({ preventScroll: true });
    return true;
  }

  /** The picture to take away. */
  async figure() {
    if (!this.story) throw new Error("nothing is shown");
    return arithmeticFigure(this.story, cssColors(this.root));
  }
}

/**
 * @param {BarPicture} picture
 * @param {string} name  of the bars
 * @param {(dimension: number) => (Node | string)[]} read
 * @returns {Plot}
 */
function createPlot(picture, name, read) {
  const canvas = element("canvas", { role: "img", "aria-label": `${name}: a bar for each of ${picture.order.length} dimensions` });
  const names = [...picture.strips.map((strip) => strip.name), name];
  const labels = element("ul", { class: "sum-labels", "aria-hidden": "true" }, names.map((text) => element("li", {}, [text])));
  const room = element("div", { class: "sum-room" }, [canvas]);
  const root = element("div", { class: "sum-picture" }, [labels, room]);
  const readout = element("p", { class: "sum-readout" });
  const draw = (/** @type {number} */ pointed = -1) => {
    const dimension = picture.order[pointed] ?? dimensions(picture.bars, "size")[0];
    const which = pointed < 0 ? `Largest: dimension ${dimension}` : `Dimension ${dimension}`;
    readout.replaceChildren(element("strong", {}, [which]), "  ", ...read(dimension));
    readout.dataset.dimension = String(dimension);
    drawPlot(canvas, room.clientWidth, { ...picture, pointed });
  };
  room.addEventListener("pointermove", ({ clientX }) => {
    const { left, width } = room.getBoundingClientRect();
    draw(dimensionAt(clientX, left, width, picture.order.length));
  });
  room.addEventListener("pointerleave", () => draw());
  return { root, readout, draw };
}

/** @type {Kind} */
export const arithmeticKind = {
  id: "arithmetic",
  label: "Arithmetic",
  title: "One weight, down to each multiplication",
  missing: (example) => (example.hasVectors ? "" : "This page was made without query and key"),
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new ArithmeticView(stage),
};
