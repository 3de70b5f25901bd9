/**
 * What the numbers mean and which of them are shown. No drawing here, no document.
 *
 * @typedef {"query" | "key"} Side
 * @typedef {{side: Side, index: number}} Focus  one token, on the side that looks or is looked at
 * @typedef {{query: Uint8Array, key: Uint8Array}} Shown  1 where a token takes part
 *
 * @import { Tokens } from "./data.js"
 * @import { Layer } from "./example.js"
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

/** A text of more tokens opens with one head: the lines of all of them hide one another. */
export const LONG = 200;

/**
 * The threshold a page begins with: none for a sentence, more the longer the text, since the
 * even share of 200 tokens is half a percent and thousands of such lines hide all others.
 *
 * @param {number} size  tokens
 */
export function usualMinimum(size) {
  if (size <= 32) return 0;
  const least = Math.min(size / (size > LONG ? 64 : 40), 10);
  return MINIMA.find((percent) => percent >= least) ?? MINIMA[MINIMA.length - 1];
}

/** @param {number} code */
export function weightOf(code) {
  return (code / 255) ** 2;
}

/** Weights square-root coded: round(255·sqrt(weight)). @param {Float32Array} weights */
export function codesOf(weights) {
  const codes = new Uint8Array(weights.length);
  for (let i = 0; i < codes.length; i += 1) codes[i] = Math.sqrt(Math.min(Math.max(weights[i], 0), 1)) * 255 + 0.5;
  return codes;
}

/** @param {Side} side @returns {Side} */
export function opposite(side) {
  return side === "query" ? "key" : "query";
}

/**
 * @param {Tokens} tokens  those that look
 * @param {string} filter
 * @param {boolean} special  whether special tokens take part
 * @param {Tokens} [keyTokens]  those that are looked at, where they are others
 * @returns {Shown}
 */
export function shownTokens(tokens, filter, special, keyTokens = tokens) {
  const { from, to } = FILTERS.find(({ id }) => id === filter) ?? FILTERS[0];
  const [query, key] = [{ side: tokens, segment: from }, { side: keyTokens, segment: to }].map(({ side, segment }) =>
    Uint8Array.from(side.segment, (own, i) => Number((segment < 0 || own === segment) && (special || !side.special[i]))),
  );
  return { query, key };
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
  const found = /** @type {number[]} */ ([]);
  forEachLine(layer, heads, shown, least, focus, (place) => found.push(place));
  const counts = new Uint32Array(257);
  for (const place of found) counts[256 - layer.codes[place]] += 1;
  for (let i = 1; i < 257; i += 1) counts[i] += counts[i - 1];
  const lines = new Uint32Array(found.length);
  for (const place of found) lines[counts[255 - layer.codes[place]]++] = place;
  return lines;
}

/** Where so many times the wanted lines are equally strong, none of them is the strongest. */
const TOO_MANY = 8;

/**
 * The highest code that at least `count` lines have, or fewer where the next ones are equally strong
 * and too many; 256 where no few lines are stronger than the others.
 *
 * @param {Layer} layer
 * @param {number[]} heads  places in the head axis
 * @param {Shown} shown
 * @param {number} count
 * @param {Focus | null} focus
 */
export function codeOfStrongest(layer, heads, shown, count, focus) {
  const counts = new Uint32Array(256);
  forEachLine(layer, heads, shown, 1, focus, (place) => void (counts[layer.codes[place]] += 1));
  let strongest = 256;
  for (let code = 255, found = 0; code > 0 && found < count; code -= 1) {
    found += counts[code];
    if (found > TOO_MANY * count) return strongest;
    if (counts[code]) strongest = code;
  }
  return strongest;
}

/**
 * @param {Layer} layer
 * @param {number[]} heads
 * @param {Shown} shown
 * @param {number} least
 * @param {Focus | null} focus
 * @param {(place: number) => void} visit
 */
function forEachLine({ codes, nQueries, nKeys }, heads, shown, least, focus, visit) {
  const [queryFrom, queryTo] = focus?.side === "query" ? [focus.index, focus.index + 1] : [0, nQueries];
  const [keyFrom, keyTo] = focus?.side === "key" ? [focus.index, focus.index + 1] : [0, nKeys];
  for (const head of heads) {
    for (let query = queryFrom; query < queryTo; query += 1) {
      if (!shown.query[query]) continue;
      const row = (head * nQueries + query) * nKeys;
      for (let key = keyFrom; key < keyTo; key += 1) {
        if (codes[row + key] >= least && shown.key[key]) visit(row + key);
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
  return layer.codes[(head * layer.nQueries + query) * layer.nKeys + key];
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
  const means = new Float64Array(focus.side === "query" ? layer.nKeys : layer.nQueries);
  if (!heads.length || !shown[focus.side][focus.index]) return means;
  for (let other = 0; other < means.length; other += 1) {
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
