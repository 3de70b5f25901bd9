/**
 * Grouped heads, windows, soft caps and rotation, in words: what not every model has.
 *
 * @typedef {ExampleHeader["sizes"]} Sizes
 *
 * @import { ExampleHeader } from "./data.js"
 * @import { Example } from "./example.js"
 */

import { written } from "../text/numbers.js";

/**
 * The key-value head that a head reads: its own, unless several share one.
 *
 * @param {Pick<Sizes, "n_heads" | "n_kv_heads">} sizes
 * @param {number} head
 */
export function keyHeadOf({ n_heads: all, n_kv_heads: shared = all }, head) {
  return Math.floor((head * shared) / all);
}

export const ONE_WAY = "This model reads in one direction: a token looks only at itself and at the tokens before it.";

/**
 * Which heads read the same keys and values as this one; empty where each head has its own.
 *
 * @param {Example} example
 * @param {number} head  its number in the model
 */
export function sharing({ header: { sizes } }, head) {
  const { n_heads: all, n_kv_heads: shared = all } = sizes;
  if (shared === all) return "";
  if (shared === 1) return `All ${all} heads share one key-value head.`;
  const [size, own] = [all / shared, keyHeadOf(sizes, head)];
  return `Heads ${own * size}${size === 2 ? " and " : " to "}${(own + 1) * size - 1} share key-value head ${own}.`;
}

/** The same of a whole model, in one sentence. @param {Example} example */
export function grouping(example) {
  const { n_heads: all, n_kv_heads: shared = all } = example.header.sizes;
  if (shared === all || shared === 1) return sharing(example, 0);
  return `Every ${all / shared} heads share a key-value head: their queries differ, and they read the same keys and values.`;
}

/**
 * How far a token of a layer looks; empty where it looks everywhere that the model lets it.
 *
 * @param {[number, number] | null | undefined} window
 * @param {boolean} causal
 */
export function reach(window, causal) {
  if (!window) return "";
  const [before, after] = window;
  if (causal) return `In this layer a token sees ${before ? `itself and the ${before} before it` : "itself alone"}.`;
  return `In this layer a token sees itself, ${before} before it and ${after} after it.`;
}

/** The same of all layers of a page that have a window, in one sentence. @param {Example} example */
export function windowsOf({ header: { windows = [] }, layers }) {
  const sizes = windows.flatMap((window) => (window ? [window[0] + window[1] + 1] : []));
  if (!sizes.length) return "";
  const all = sizes.length === layers.length ? "The layers" : `${sizes.length} of ${layers.length} layers`;
  const most = [...new Set(sizes)].sort((a, b) => a - b).join(" or ");
  return `${all} ${sizes.length > 1 || layers.length === 1 ? "have a window" : "has a window"}: there a token sees at most ${most} tokens.`;
}

/**
 * What is to be known of query, key and scores of a head beside their numbers.
 *
 * @param {Example} example
 * @param {number} layer
 * @param {number} head
 */
export function beside(example, layer, head) {
  const { softCap, window, rotary } = example.looking(layer);
  return [
    sharing(example, head),
    reach(window, example.causal),
    softCap ? `Scores stand here as they are before the soft cap, which squeezes them into −${written(softCap, 0)} to ${written(softCap, 0)}.` : "",
    rotary ? "Query and key are shown after rotation: turned by position, so that the same pair of tokens at another distance gives another product." : "",
  ].filter(Boolean);
}
