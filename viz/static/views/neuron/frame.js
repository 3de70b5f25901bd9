/**
 * What stands in the neuron view whichever tokens are shown: switch, scales, captions, columns.
 *
 * @typedef {ReturnType<typeof createNeuronFrame>} NeuronFrame
 */

import { beside } from "../../core/data/sharing.js";
import { segments } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { rampOf } from "../../core/draw/sign_colors.js";
import { short } from "../../core/text/numbers.js";
import { tokenText } from "../../core/text/text.js";
import { numeral } from "../../marks/numeral.js";
import { LOW_ROW, rowHeight, Rows } from "../../marks/rows.js";

const EDITED = "the other pictures show the weights as the edit left them.";
const APART = "the other pictures show the model's.";

/** Tokens in the menu of those that look. */
const OFFERED = 1000;

/**
 * What is to be known beside the numbers.
 *
 * @param {import("../../core/data/example.js").Example} example
 * @param {{layer: number, head: number}} loaded
 */
export function noteOf(example, { layer, head }) {
  const { edited, apart } = example.header;
  const here = `${apart ?? "This trace was edited."} The weights here follow from query and key; ${apart ? APART : EDITED}`;
  return [...(edited ? [here] : []), ...beside(example, layer, head)].join(" ");
}

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {import("../../core/state/state.js").Store} store
 */
export function createNeuronFrame(example, store) {
  const { tokens, keyTokens } = example;
  const row = rowHeight(example);
  const queries = new Rows(tokens, "query", "Tokens that look (query)", row);
  const keys = new Rows(keyTokens, "key", "Tokens that are looked at (key)", row, () => [
    element("data", { class: "neuron-score" }),
    element("data", { class: "neuron-weight" }),
  ]);
  const lines = canvas("neuron-lines");
  const cells = canvas("neuron-cells");
  const between = element("div", { class: "neuron-between" }, [lines]);
  const left = element("div", { class: "neuron-left" }, [queries.root]);
  const right = element("div", { class: "neuron-right" }, [keys.root, cells]);
  const body = element("div", { class: "neuron-grid neuron-body" }, [left, between, right]);
  const head = createHead();
  const scroll = element("div", { class: `neuron-scroll${row === LOW_ROW ? " dense" : ""}` }, [head.root, body]);
  const top = createTop(store);
  const empty = element("p", { class: "empty", role: "status" });
  const note = element("p", { class: "neuron-note" });
  const root = element("div", { class: "neuron-view" }, [top.root, note, empty, scroll]);
  return { ...top, root, top: top.root, note, empty, scroll, head, body, between, right, lines, cells, queries, keys, row };
}

/** @param {string} name */
function canvas(name) {
  return element("canvas", { class: name, "aria-hidden": "true" });
}

function createHead() {
  const chip = element("p", { class: "neuron-chosen" });
  const strip = canvas("neuron-query");
  const key = element("div", { class: "neuron-cell" }, [caption("its query above each key", "q, k"), strip]);
  const product = element("div", { class: "neuron-cell vectors" }, [caption("multiplied, cell by cell", "q × k")]);
  key.classList.add("vectors");
  const right = element("div", { class: "neuron-row" }, [
    element("div", { class: "neuron-cell" }, [caption("where it looks", "key"), chip]),
    key,
    product,
    element("div", { class: "neuron-cell vectors" }, [caption("summed", "score")]),
    element("div", { class: "neuron-cell" }, [caption("its share", "softmax")]),
  ]);
  const left = element("div", { class: "neuron-left" }, [caption("what looks", "query")]);
  const root = element("div", { class: "neuron-grid neuron-head" }, [
    left,
    element("div", { class: "neuron-between" }),
    right,
  ]);
  return { root, chip, strip, key, product };
}

/**
 * @param {string} words
 * @param {string} name
 */
function caption(words, name) {
  return element("p", { class: "neuron-caption" }, [element("strong", {}, [words]), ` ${name}`]);
}

/**
 * Chooses a token in the menu, which has those around it.
 *
 * @param {HTMLSelectElement} pick
 * @param {import("../../core/data/data.js").Tokens} tokens
 * @param {number} chosen
 */
export function choose(pick, tokens, chosen) {
  if (!pick.querySelector(`[value="${chosen}"]`)) {
    const first = Math.max(0, Math.min(chosen - OFFERED / 2, tokens.text.length - OFFERED));
    const choices = tokens.text.slice(first, first + OFFERED).map((_, i) => {
      const { mark, text } = tokenText(tokens, first + i, 24);
      return element("option", { value: String(first + i) }, [`${first + i}  ${mark}${text}`]);
    });
    pick.replaceChildren(...choices);
  }
  pick.value = String(chosen);
}

/** @param {import("../../core/state/state.js").Store} store */
function createTop(store) {
  const pick = element("select", { class: "neuron-pick", "aria-label": "Token that looks (query)" });
  const vectors = createScale("q, k");
  const products = createScale("q × k");
  const scales = element("div", { class: "neuron-scales vectors" }, [vectors.root, products.root]);
  const readout = element("p", { class: "neuron-readout" });
  const onward = element("button", { type: "button", class: "quiet neuron-onward" }, ["Step by step"]);
  const shown = segments(
    [
      { id: "lines", label: "Lines", title: "Only the weights, as lines" },
      { id: "vectors", label: "Vectors", title: "Query, key, products and scores too" },
    ],
    (id) => store.set({ expanded: id === "vectors" }),
    "What is shown",
  );
  const root = element("div", { class: "neuron-top" }, [
    element("div", { class: "neuron-bar" }, [shown.root, pick, scales]),
    element("div", { class: "neuron-bar" }, [readout, onward]),
  ]);
  return { root, shown, pick, scales: { vectors, products }, readout, onward };
}

/** @param {string} name */
function createScale(name) {
  const [low, high] = ["", ""].map(() => element("span", { class: "neuron-bound" }));
  const ramp = element("span", { class: "neuron-ramp" });
  const root = element("span", { class: "neuron-scale" }, [element("span", {}, [name]), low, ramp, high]);
  return {
    root,
    /**
     * @param {number} scale
     * @param {"light" | "dark"} theme
     */
    show(scale, theme) {
      low.textContent = short(-scale);
      high.textContent = short(scale);
      ramp.style.backgroundImage = rampOf(theme);
      root.setAttribute("aria-label", `Colours of ${name}: orange from ${short(-scale)}, blue to ${short(scale)}`);
      root.dataset.scale = String(scale);
    },
  };
}

/**
 * One dimension in numbers.
 *
 * @param {HTMLElement} readout
 * @param {{dimension: number, query: number, key: number, scale: number}} cell
 */
export function readDimension(readout, { dimension, query, key, scale }) {
  const product = query * key;
  readout.dataset.dimension = String(dimension);
  readout.replaceChildren(
    element("strong", {}, [`Dimension ${dimension}`]),
    "  ",
    numeral("q", query),
    " × ",
    numeral("k", key),
    " = ",
    numeral("product", product),
    ", adds ",
    numeral("contribution", product * scale),
    " to the score",
  );
}

/**
 * One weight in a line.
 *
 * @param {HTMLElement} readout
 * @param {import("../../core/data/example.js").Example} example
 * @param {{query: number, key: number, weight: string}} pair
 */
export function readWeight(readout, { tokens, keyTokens }, { query, key, weight }) {
  delete readout.dataset.dimension;
  readout.replaceChildren(
    tokenChip(tokens, query, 40),
    " looks at ",
    tokenChip(keyTokens, key, 40),
    ` with ${weight}`,
  );
}
