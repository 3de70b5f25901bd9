/**
 * The neuron view: for one token that looks, its query, the key of each token, their products
 * dimension by dimension, the scores and the weights; after BertViz' neuron view (Vig 2019).
 *
 * A table of HTML. Query, keys and products share their columns, so that a dimension is read downwards. Of a long text
 * it has the keys with the largest weights.
 *
 * @typedef {object} Scene
 * @property {{layer: number, head: number, vectors: Vectors, scales: {vectors: number, products: number, scores: number}}} loaded  the head that is shown
 * @property {Row} row
 * @property {number} key
 * @property {"light" | "dark"} theme
 *
 * @import { Vectors } from "../../core/data/example.js"
 * @import { Row } from "../../core/data/softmax.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { sentenceOfRow } from "../../core/data/sentence.js";
import { beside } from "../../core/data/sharing.js";
import { pairOf, productsOf, sees, vectorOf, whyAbsent } from "../../core/data/softmax.js";
import { headColor, rampOf, scaleFor, signedShade, weightShade } from "../../core/draw/colors.js";
import { button } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { short, written } from "../../core/text/numbers.js";
import { percent, tokenName } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { numeral } from "../../marks/cards.js";
import { chooseToken, tokenMenu } from "../../marks/rows.js";
import { dimensionAt, stripOf } from "../../marks/strips.js";

/** Keys that have a row. */
const MOST = 150;

class NeuronView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const { store } = stage;
    this.pick = tokenMenu("Token that looks (query)", (query) => store.set({ query, key: null, anchor: "query" }));
    this.onward = button("Step by step", () => this.story && store.set({ view: "arithmetic", query: this.story.row.query, key: this.story.key, anchor: "query" }), { class: "quiet" });
    this.onward.hidden = !this.limits.views.includes("arithmetic");
    this.scales = [createScale("q, k"), createScale("q × k")];
    this.readout = element("p", { class: "neuron-readout" });
    this.note = element("p", { class: "neuron-note" });
    this.empty = element("p", { class: "empty", role: "status" });
    this.query = element("td", { class: "neuron-strip" });
    this.chip = element("th", { class: "neuron-key", scope: "row" });
    this.body = element("tbody");
    const titles = [["where it looks", "key"], ["its query above each key", "q, k"], ["multiplied, cell by cell", "q × k"], [translated`summed`, "score"], ["its share", "softmax"]];
    const head = element("thead", {}, [
      element("tr", {}, titles.map(([words, name]) => element("th", { scope: "col" }, [element("strong", {}, [words]), ` ${name}`]))),
      element("tr", {}, [this.chip, this.query, element("td"), element("td"), element("td")]),
    ]);
    this.table = element("table", { class: "neuron-table" }, [head, this.body]);
    this.top = element("div", { class: "neuron-bar" }, [this.pick, this.onward, ...this.scales.map(({ root }) => root)]);
    this.root = element("div", { class: "neuron-view" }, [this.top, this.readout, this.note, this.empty, this.table]);
    this.story = /** @type {Scene | null} */ (null);
    /** The last head's scales. @type {Pick<Scene["loaded"], "vectors" | "scales"> | null} */
    this.known = null;
    this.table.addEventListener("pointermove", (event) => this.pointAt(event));
    this.table.addEventListener("pointerleave", () => this.readout.replaceChildren());
  }

  /** Shows the store's state. */
  async update() {
    const asked = this.asked();
    const { layer, head } = asked;
    const vectors = await this.example.vectors(layer, head);
    if (!this.stillAsked(asked)) return;
    this.empty.textContent = vectors ? "" : whyAbsent(this.example, layer, head);
    this.table.hidden = this.top.hidden = !vectors;
    this.story = null;
    if (!vectors) return;
    const scales = this.known?.vectors === vectors ? this.known.scales : scalesOf(vectors, this.example.causal);
    this.known = { vectors, scales };
    this.story = { loaded: { layer, head, vectors, scales }, ...pairOf(this.example, vectors, this.store.get()), theme: this.theme() };
    this.show(this.story);
    Object.assign(this.root.dataset, { drawn: "true", layer: String(layer), query: String(this.story.row.query) });
  }

  /** @param {Scene} story */
  show({ loaded: { layer, head, vectors, scales }, row, theme }) {
    const { tokens } = this.example;
    const { edited, apart } = this.example.header;
    const here = `${apart ?? "This trace was edited."} The weights here follow from query and key; the other pictures show ${apart ? "the model's" : "the weights as the edit left them"}.`;
    const unseen = vectors.nKeys > MOST ? [`The ${MOST} keys with the largest weights are listed.`] : [];
    this.note.textContent = [...(edited ? [here] : []), ...beside(this.example, layer, head), ...unseen].join(" ");
    chooseToken(this.pick, tokens, row.query);
    this.chip.replaceChildren(tokenChip(tokens, row.query, 24));
    this.scales.forEach((one, i) => one.show(i ? scales.products : scales.vectors, theme));
    this.query.replaceChildren(stripOf(vectorOf(vectors.query, row.query, vectors.width), scales.vectors, theme));
    const order = Array.from(row.weights.keys()).sort((a, b) => row.weights[b] - row.weights[a] || a - b).slice(0, MOST);
    const used = this.body.querySelector(":focus")?.closest("tr")?.dataset.key;
    this.body.replaceChildren(...order.sort((a, b) => a - b).map((key) => this.row(key)));
    if (used) /** @type {HTMLElement | null} */ (this.body.querySelector(`[data-key="${used}"] button`))?.focus();
  }

  /** @param {number} key */
  row(key) {
    const { loaded: { head, vectors, scales }, row, theme } = /** @type {Scene} */ (this.story);
    const { keyTokens } = this.example;
    const masked = !sees(row, key);
    const choose = button(tokenChip(keyTokens, key, 24), () => this.store.set({ query: row.query, key: this.store.get().key === key ? null : key, anchor: "query" }));
    const strip = (/** @type {ArrayLike<number>} */ numbers, /** @type {number} */ scale) => element("td", { class: "neuron-strip" }, [stripOf(numbers, scale, theme)]);
    const number = (/** @type {string} */ name, /** @type {number} */ value, /** @type {string} */ text, /** @type {string} */ color) => {
      const made = element("td", {}, [element("data", { class: `neuron-${name}`, value: String(value) }, [text])]);
      made.style.backgroundColor = color;
      return made;
    };
    const made = element("tr", { class: `neuron-row${masked ? " out" : ""}${keyTokens.special[key] ? " special" : ""}`, "data-key": String(key) }, [
      element("th", { class: "neuron-key", scope: "row" }, [choose]),
      strip(vectorOf(vectors.key, key, vectors.width), scales.vectors),
      strip(productsOf(vectors, row.query, key), scales.products),
      number("score", masked ? -Infinity : row.scores[key], masked ? translated`masked` : written(row.scores[key], 2), masked ? "" : signedShade(row.scores[key], scales.scores, theme)),
      number("weight", row.weights[key], masked ? "–" : percent(row.weights[key]), weightShade(headColor(head, theme), row.weights[key], theme)),
    ]);
    made.classList.toggle("kept", this.store.get().key === key);
    choose.setAttribute("aria-pressed", String(this.store.get().key === key));
    return made;
  }

  /** Says what a cell of a strip adds. @param {PointerEvent} event */
  pointAt({ target, clientX }) {
    const strip = target instanceof HTMLElement ? target.closest("canvas") : null;
    const row = strip?.closest("tr");
    if (!this.story || !strip || !row) return;
    const { loaded: { vectors }, row: { query }, key: shown } = this.story;
    const dimension = dimensionAt(strip, clientX, vectors.width);
    const key = Number(row.dataset.key ?? shown);
    if (dimension < 0) return;
    const [q, k] = [vectors.query[query * vectors.width + dimension], vectors.key[key * vectors.width + dimension]];
    this.readout.replaceChildren(
      element("strong", {}, [`Dimension ${dimension}`]), "  ", numeral("q", q), " × ", numeral("k", k), " = ", numeral("product", q * k),
      ", adds ", numeral("contribution", q * k * vectors.scale), " to the score",
    );
  }

  says() {
    return this.story ? sentenceOfRow(this.example, { ...this.story.loaded, key: this.store.get().key }, this.story.row) : [];
  }

  /** The picture to take away. */
  async figure() {
    if (!this.story) throw new Error("nothing is shown");
    const { loaded: { layer, head, vectors }, row } = this.story;
    const { tokens, keyTokens } = this.example;
    const dimensions = Array.from({ length: vectors.width }, (_, i) => i);
    return pageFigure(this.table, `${tokenName(tokens, row.query)} in layer ${layer}, head ${head}`, {
      name: "neuron",
      columns: ["key", "token", "score", "weight", ...dimensions.map((i) => `k_${i}`), ...dimensions.map((i) => `q_${i} k_${i}`)],
      *rows() {
        for (let i = 0; i < vectors.nKeys; i += 1) {
          const score = sees(row, i) ? row.scores[i] : "masked";
          yield [i, keyTokens.text[i], score, row.weights[i], ...vectorOf(vectors.key, i, vectors.width), ...productsOf(vectors, row.query, i)];
        }
      },
    });
  }
}

/** @type {Kind} */
export const neuronKind = {
  id: "neuron",
  label: "Neuron",
  title: "Query and key of one head, cell by cell, and the weights they make",
  missing: (example) => (example.hasVectors ? "" : "This page was made without query and key"),
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new NeuronView(stage),
};

/**
 * Scales of colour that hold for every query of a head, so that its pictures can be compared.
 *
 * @param {Vectors} vectors
 * @param {boolean} causal
 */
function scalesOf(vectors, causal) {
  const { query, key, nQueries, nKeys, width, scale } = vectors;
  const steps = Math.min(24, Math.max(nQueries, nKeys));
  const products = new Float64Array(steps * steps * width);
  const scores = new Float64Array(steps * steps);
  for (let place = 0; place < scores.length; place += 1) {
    const q = Math.floor((Math.floor(place / steps) * nQueries) / steps);
    const k = Math.floor(((place % steps) * (causal ? q + 1 : nKeys)) / steps);
    const found = productsOf(vectors, q, k);
    products.set(found, place * width);
    scores[place] = found.reduce((sum, value) => sum + value, 0) * scale;
  }
  return { vectors: scaleFor(query, key), products: scaleFor(products), scores: scaleFor(scores) };
}

/** @param {string} name */
function createScale(name) {
  const [low, high] = ["", ""].map(() => element("span", { class: "neuron-bound" }));
  const ramp = element("span", { class: "neuron-ramp" });
  const root = element("span", { class: "neuron-scale" }, [element("span", {}, [name]), low, ramp, high]);
  return {
    root,
    /** @param {number} scale @param {"light" | "dark"} theme */
    show(scale, theme) {
      low.textContent = short(-scale);
      high.textContent = short(scale);
      ramp.style.backgroundImage = rampOf(theme);
      root.setAttribute("aria-label", `Colours of ${name}: orange from ${short(-scale)}, blue to ${short(scale)}`);
    },
  };
}
