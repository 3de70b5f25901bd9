/** Beside the map: the cell that is pointed at or kept, in numbers; the scale; how to read it. */

import { segments } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { percent } from "../../core/text/text.js";
import { boundsText, large } from "../../marks/bars.js";
import { createRamp, facts, legendOf } from "../../marks/cards.js";
import { gradientOf } from "./scale.js";

const KEYS = { 0: "whole map", "+ −": "zoom", "← ↑ → ↓": "move", Enter: "keep the largest", Esc: "let go" };

/** @typedef {{weight: number, received: number, source: "codes" | "half" | "single" | "bytes" | "none"}} Reading */

/**
 * @param {HTMLElement} card
 * @param {string} where
 */
export function showMapHint(card, where) {
  card.dataset.shows = "hint";
  card.replaceChildren(
    element("p", { class: "where" }, [where]),
    element("p", { class: "hint" }, ["Point at a cell to read it. Click to keep its tokens; drag to move, turn the wheel to zoom."]),
  );
}

/**
 * @param {HTMLElement} card
 * @param {string} where
 * @param {import("../../core/data/example.js").Example} example
 * @param {{query: number, key: number}} cell
 * @param {Reading} reading
 */
export function showCell(card, where, { tokens, keyTokens }, { query, key }, reading) {
  card.dataset.shows = "cell";
  const pairs = [
    ["query", `token ${query}`],
    ["key", `token ${key}`],
    ["received", `${reading.received.toFixed(2)} from all tokens`],
  ];
  card.replaceChildren(
    element("p", { class: "where" }, [where]),
    element("h2", {}, [tokenChip(tokens, query), " looks at ", tokenChip(keyTokens, key)]),
    number(reading),
    facts(pairs),
  );
}

/** @param {Reading} reading */
function number({ weight, source }) {
  return large(weight, writtenWeight(weight, source), precision(weight, source));
}

/**
 * @param {number} weight
 * @param {Reading["source"]} source
 */
function writtenWeight(weight, source) {
  if (source === "none") return "0";
  if (source === "codes") return percent(weight);
  return `${(weight * 100).toFixed(source === "single" ? 4 : 2)}\u202f%`;
}

/**
 * @param {number} weight
 * @param {Reading["source"]} source
 */
function precision(weight, source) {
  if (source === "none") return "a token cannot look ahead here";
  if (source === "single") return "exact, from query and key";
  if (source === "bytes") return "from query and key, a byte a number";
  if (source === "half") return "from query and key, rounded to half precision";
  return `rounded: ${boundsText(Math.round(255 * Math.sqrt(weight)))}`;
}

/**
 * @param {import("../../core/state/state.js").Store} store
 * @param {boolean} causal
 */
export function createMapLegend(store, causal) {
  const ramp = createRamp("map-ramp");
  const choices = /** @type {{id: "root" | "linear", label: string}[]} */ ([
    { id: "root", label: "square root" },
    { id: "linear", label: "linear" },
  ]);
  const scales = segments(choices, (id) => store.set({ scale: id }), "Colour scale", "map-scales");
  const sentences = [
    "A row is a token that looks, a column one that is looked at. Zoomed out, a point shows the largest weight it covers.",
    "Below, how much attention each token receives from the rows in view; at the right, how much of each row is in view.",
    causal ? "This model reads in one direction: what lies above the diagonal does not exist and is not drawn." : "",
  ];
  const parts = [
    ...ramp.parts,
    scales.root,
    ...sentences,
  ];
  const root = legendOf(parts, KEYS, "Weight");
  return {
    root,
    /** @param {"light" | "dark"} theme @param {number} largest */
    update(theme, largest) {
      const chosen = store.get().scale;
      const marks = [0, chosen === "root" ? largest / 4 : largest / 2, largest];
      ramp.show(gradientOf(theme), marks.map((weight) => percent(weight).replace(".0", "")));
      scales.show(chosen);
    },
  };
}
