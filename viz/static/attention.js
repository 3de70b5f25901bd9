/**
 * What the numbers mean and which of them are shown. No drawing here, no document.
 *
 * @typedef {import("./example.js").Layer} Layer
 * @typedef {"query" | "key"} Side
 * @typedef {{side: Side, index: number}} Focus  one token, on the side that looks or is looked at
 * @typedef {{query: Uint8Array, key: Uint8Array}} Shown  1 where a token takes part
 */

/** Sentence filters: the segment that looks, the segment that is looked at. */
export const FILTERS = [
  { id: "all", label: "All", from: -1, to: -1 },
  { id: "aa", label: "A→A", from: 0, to: 0 },
  { id: "ab", label: "A→B", from: 0, to: 1 },
  { id: "ba", label: "B→A", from: 1, to: 0 },
  { id: "bb", label: "B→B", from: 1, to: 1 },
];

/** The steps of the threshold, in percent. */
export const MINIMA = [0, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 50];

/** A line fainter than half a step of an 8-bit screen cannot be seen. */
const FAINTEST = 1 / 510;

/**
 * The threshold a page begins with: none for a sentence, more the longer the text, since the
 * even share of 200 tokens is half a percent and thousands of such lines hide all others.
 *
 * @param {number} size  tokens
 */
export function usualMinimum(size) {
  if (size <= 32) return 0;
  return MINIMA.find((percent) => percent >= size / 64) ?? MINIMA[MINIMA.length - 1];
}

/** @param {number} code */
export function weightOf(code) {
  return (code / 255) ** 2;
}

/**
 * The smallest and the largest weight that have this code.
 *
 * @param {number} code
 * @returns {[number, number]}
 */
export function boundsOf(code) {
  return [(Math.max(code - 0.5, 0) / 255) ** 2, (Math.min(code + 0.5, 255) / 255) ** 2];
}

/** @param {Side} side @returns {Side} */
export function opposite(side) {
  return side === "query" ? "key" : "query";
}

/**
 * @param {import("./data.js").Tokens} tokens
 * @param {string} filter
 * @param {boolean} special  whether special tokens take part
 * @returns {Shown}
 */
export function shownTokens(tokens, filter, special) {
  const { from, to } = FILTERS.find(({ id }) => id === filter) ?? FILTERS[0];
  const takesPart = (/** @type {number} */ segment) =>
    Uint8Array.from(tokens.segment, (own, i) =>
      Number((segment < 0 || own === segment) && (special || !tokens.special[i])),
    );
  return { query: takesPart(from), key: takesPart(to) };
}

/**
 * How strongly weights are drawn: few lines may be strong, many must be faint to be told apart.
 *
 * @param {number} nHeads
 * @param {boolean} focused
 */
export function strengthFor(nHeads, focused) {
  if (focused || nHeads <= 2) return 3;
  return nHeads <= 5 ? 2 : 1;
}

/**
 * The opacity of a line: the weight itself at strength 1, rising faster above.
 *
 * @param {number} weight
 * @param {number} strength
 */
export function lineAlpha(weight, strength) {
  return 1 - (1 - weight) ** strength;
}

/**
 * The first code whose line is drawn.
 *
 * @param {number} minimum  percent
 * @param {number} strength
 */
export function firstCode(minimum, strength) {
  for (let code = 1; code < 256; code += 1) {
    const weight = weightOf(code);
    if (weight * 100 >= minimum && lineAlpha(weight, strength) >= FAINTEST) return code;
  }
  return 256;
}

/**
 * The lines to draw, the strongest first, each as its place in `layer.codes`.
 *
 * @param {Layer} layer
 * @param {number[]} heads  places in the head axis
 * @param {Shown} shown
 * @param {number} least  the first code that is drawn
 * @param {Focus | null} focus
 * @returns {Uint32Array}
 */
export function gatherLines(layer, heads, shown, least, focus) {
  const counts = new Uint32Array(257);
  forEachLine(layer, heads, shown, least, focus, (place, code) => {
    counts[255 - code + 1] += 1;
  });
  for (let i = 1; i < 257; i += 1) counts[i] += counts[i - 1];
  const lines = new Uint32Array(counts[256]);
  forEachLine(layer, heads, shown, least, focus, (place, code) => {
    lines[counts[255 - code]++] = place;
  });
  return lines;
}

/**
 * @param {Layer} layer
 * @param {number[]} heads
 * @param {Shown} shown
 * @param {number} least
 * @param {Focus | null} focus
 * @param {(place: number, code: number) => void} visit
 */
function forEachLine({ codes, size }, heads, shown, least, focus, visit) {
  const [queryFrom, queryTo] = focus?.side === "query" ? [focus.index, focus.index + 1] : [0, size];
  const [keyFrom, keyTo] = focus?.side === "key" ? [focus.index, focus.index + 1] : [0, size];
  for (const head of heads) {
    for (let query = queryFrom; query < queryTo; query += 1) {
      if (!shown.query[query]) continue;
      const row = (head * size + query) * size;
      for (let key = keyFrom; key < keyTo; key += 1) {
        const code = codes[row + key];
        if (code >= least && shown.key[key]) visit(row + key, code);
      }
    }
  }
}

/**
 * @param {Layer} layer
 * @param {number} head  place in the head axis
 * @param {Focus} focus
 * @param {number} other  a token on the opposite side
 */
export function codeAt(layer, head, focus, other) {
  const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
  return layer.codes[(head * layer.size + query) * layer.size + key];
}

/**
 * The weight between the focus and each token opposite, the mean over heads; 0 where not shown.
 *
 * @param {Layer} layer
 * @param {number[]} heads
 * @param {Shown} shown
 * @param {Focus} focus
 */
export function meanWeights(layer, heads, shown, focus) {
  const means = new Float64Array(layer.size);
  if (!heads.length || !shown[focus.side][focus.index]) return means;
  for (let other = 0; other < layer.size; other += 1) {
    if (!shown[opposite(focus.side)][other]) continue;
    for (const head of heads) means[other] += weightOf(codeAt(layer, head, focus, other));
    means[other] /= heads.length;
  }
  return means;
}

/**
 * The places of the largest values, largest first, ties in reading order.
 *
 * @param {Float64Array} values
 * @param {number} count
 * @param {number} least
 */
export function largest(values, count, least) {
  return Array.from(values.keys())
    .filter((i) => values[i] >= least)
    .sort((a, b) => values[b] - values[a] || a - b)
    .slice(0, count);
}
