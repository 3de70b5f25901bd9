/** What a text lets be chosen: its views, layers, heads and tokens. */

import { usualHeads, usualMinimum } from "../data/attention.js";
import { namedMarks } from "../data/named.js";

/**
 * @param {import("../data/example.js").Example} example
 * @param {import("./kinds.js").Kind[]} kinds  the views that the page has
 * @param {import("../data/data.js").Header} header
 * @returns {import("../state/state.js").Limits}
 */
export function limitsOf(example, kinds, header) {
  const views = kinds.filter((kind) => !kind.missing(example)).map(({ id }) => id);
  const [size, keys] = [example.tokens.text.length, example.keyTokens.text.length];
  const segments = [...example.tokens.segment, ...example.keyTokens.segment];
  return {
    views,
    view: views.includes(header.view) ? header.view : views[0],
    examples: header.examples.length,
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
