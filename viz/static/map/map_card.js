/** Beside the map: the cell that is pointed at or kept, in numbers; the scale; how to read it. */

import { facts, legendOf } from "../draw/cards.js";
import { element, tokenChip } from "../draw/dom.js";
import { boundsText, large } from "../head/details.js";
import { gradientOf } from "./map_scale.js";
import { percent, tokenText } from "../draw/text.js";

const KEYS = { 0: "whole map", "+ −": "zoom", "← ↑ → ↓": "move", Enter: "keep the largest", Esc: "let go" };

/** @typedef {{weight: number, received: number, source: "codes" | "half" | "single" | "none"}} Reading */

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
 * @param {import("../data/example.js").Example} example
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
    element("h2", {}, [tokenChip(tokenText(tokens, query)), " looks at ", tokenChip(tokenText(keyTokens, key))]),
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
export function writtenWeight(weight, source) {
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
  if (source === "half") return "from query and key, rounded to half precision";
  return `rounded: ${boundsText(Math.round(255 * Math.sqrt(weight)))}`;
}

/**
 * @param {import("../frame/state.js").Store} store
 * @param {boolean} causal
 */
export function createMapLegend(store, causal) {
  const scale = element("span", { class: "map-scale", "aria-hidden": "true" });
  const ends = [0, 1, 2].map(() => element("span"));
  const choices = /** @type {["root" | "linear", string][]} */ ([["root", "square root"], ["linear", "linear"]]);
  const buttons = choices.map(([id, label]) => {
    const button = element("button", { type: "button" }, [label]);
    button.dataset.scale = id;
    button.addEventListener("click", () => store.set({ scale: id }));
    return button;
  });
  const sentences = [
    "A row is a token that looks, a column one that is looked at. Zoomed out, a point shows the largest weight it covers.",
    "Below, how much attention each token receives from the rows in view; at the right, how much of each row is in view.",
    causal ? "This model reads in one direction: what lies above the diagonal does not exist and is not drawn." : "",
  ];
  const parts = [
    scale,
    element("p", { class: "map-ends" }, ends),
    element("div", { class: "segments map-scales", role: "group", "aria-label": "Colour scale" }, buttons),
    ...sentences,
  ];
  const root = legendOf(parts, KEYS, "Weight");
  return {
    root,
    /** @param {"light" | "dark"} theme @param {number} largest */
    update(theme, largest) {
      const chosen = store.get().scale;
      scale.style.background = gradientOf(theme);
      [0, chosen === "root" ? largest / 4 : largest / 2, largest].forEach((weight, i) => {
        ends[i].textContent = percent(weight).replace(".0", "");
      });
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.scale === chosen));
    },
  };
}
