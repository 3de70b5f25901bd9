/** What the text view shows at a time: which numbers, of which tokens, in which colour. */

import { shownTokens } from "../../core/data/attention.js";
import { exchanged, received, relevanceOf, shadedSide, shadingOf } from "../../core/data/shading.js";
import { headColor } from "../../core/draw/colors.js";
import { signColor } from "../../core/draw/sign_colors.js";

/**
 * @typedef {import("../../core/data/shading.js").Measure} Measure
 * @typedef {import("../../core/state/fields.js").State} State
 */

/** @type {WeakMap<import("../../core/data/example.js").Layer, {name: string, values: Float64Array}>} */
const RECEIVED = new WeakMap();

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {State} state
 * @returns {Measure}
 */
export function measureOf(example, { measure }) {
  return measure === "relevance" && !relevanceOf(example) ? "received" : measure;
}

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {State} state
 * @param {import("../../core/data/example.js").Layer} layer
 * @param {import("../../core/data/attention.js").Focus | null} pointed
 * @param {"light" | "dark"} theme
 * @returns {import("./card.js").Scene}
 */
export function sceneOf(example, state, layer, pointed, theme) {
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

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {State} state
 * @returns {import("../../core/data/attention.js").Shown}
 */
function shownIn({ tokens, keyTokens }, { filter, special }) {
  return { query: shownTokens(tokens, filter, special).query, key: shownTokens(keyTokens, filter, special).key };
}

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {State} state
 * @param {import("../../core/data/example.js").Layer} layer
 * @param {import("../../core/data/attention.js").Shown} shown
 * @param {number | null} chosen
 */
function valuesOf(example, state, layer, shown, chosen) {
  const measure = measureOf(example, state);
  const heads = state.heads.map((head) => example.heads.indexOf(head));
  if (measure === "relevance") return Float64Array.from(relevanceOf(example, state.query)?.values ?? []);
  if (measure !== "received") {
    const side = measure === "from" ? "query" : "key";
    if (chosen === null) return new Float64Array(side === "query" ? layer.nKeys : layer.nQueries);
    return exchanged(layer, heads, shown, { side, index: chosen });
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
