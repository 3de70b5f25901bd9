/** What a state may hold for an example: its layers, heads and tokens, and what it begins with. */

import { usualHeads, usualMinimum } from "../data/attention.js";
import { namedMarks } from "../data/named.js";

/**
 * @param {import("../data/example.js").Example} example
 * @param {import("./kinds.js").Kind[]} kinds
 * @param {string} view  the one to begin with, where the example has it
 * @param {number} examples  how many there are
 * @returns {import("../state/state.js").Limits}
 */
export function limitsOf(example, kinds, view, examples) {
  const views = kinds.filter((kind) => !kind.missing(example)).map(({ id }) => id);
  const [size, keys] = [example.tokens.text.length, example.keyTokens.text.length];
  const segments = [...example.tokens.segment, ...example.keyTokens.segment];
  return {
    views,
    view: views.includes(view) ? view : views[0],
    examples,
    layers: example.layers,
    heads: example.heads,
    first: usualHeads(example.heads, Math.max(size, keys)),
    size,
    keys,
    minimum: usualMinimum(Math.max(size, keys)),
    named: namedMarks(example),
    pair: segments.includes(1) && segments.includes(0) && example.keyTokens === example.tokens,
  };
}
