/**
 * What is to be seen, in one sentence: where a head's tokens look, or where one token looks.
 *
 * A head is told of by the place that gets most of its tokens' attention. No document here.
 *
 * @typedef {string | {token: string}} Part  a token stands apart, whatever its direction
 *
 * @typedef {object} Place  where a head's tokens look
 * @property {"itself" | "near" | "first" | "delimiter" | "spread"} id
 * @property {number} by  of "near": how far, below zero towards the beginning
 * @property {number} share  mean over tokens; of "spread", each token's largest weight
 * @property {boolean} every  each token gives it more than half
 *
 * @typedef {object} About  what the tokens of an example say about its cells
 * @property {boolean} causal
 * @property {boolean} square  both sides are the same tokens
 * @property {Uint8Array} plain  1 where a token that looks is not a special one
 * @property {Uint8Array} delimiter  1 where a token that is looked at is one
 * @property {Uint8Array} parted  1 where a token that looks is none, and may look at one
 *
 * @typedef {object} Looked  what the sentence is about
 * @property {Example} example
 * @property {Layer} layer
 * @property {number[]} [numbers]  of the layer's heads, in the model, where they are not all of the example's
 * @property {number[]} heads  places in the head axis
 * @property {Shown} shown
 * @property {number | null} query  the chosen token that looks
 * @property {number | null} key
 *
 * @import { Focus, Shown } from "./attention.js"
 * @import { Lens } from "./data.js"
 * @import { Example, Layer } from "./example.js"
 */

import { codesOf, largest, meanWeights, weightOf } from "./attention.js";
import { translated } from "../text/translated.js";
import { tokenName } from "../text/text.js";

/** A place with less of the attention than this is none to tell of. */
const CLEAR = 0.4;
/** The furthest token that is told of by its distance. */
const FURTHEST = 8;

const WEIGHTS = Float32Array.from({ length: 256 }, (_, code) => weightOf(code));

const WORDS = { itself: translated`itself`, first: "the first one, ", previous: "the one before it", next: "the one after it" };

/** Special tokens that part nothing. */
const OTHER_SPECIAL = /mask|unk|pad|cls|bos|^<s>$/i;

/** @param {Example} example @returns {About} */
function aboutTokens({ tokens, keyTokens, causal }) {
  const square = tokens === keyTokens;
  const delimiter = Uint8Array.from(keyTokens.text, (text, i) =>
    Number(i > 0 && keyTokens.special[i] && !OTHER_SPECIAL.test(text)),
  );
  const firstOne = delimiter.indexOf(1);
  const parted = Uint8Array.from(tokens.text, (_, i) =>
    Number(firstOne >= 0 && !(square && delimiter[i]) && (!causal || i > firstOne)),
  );
  return {
    causal,
    square,
    plain: Uint8Array.from(tokens.special, (special) => Number(!special)),
    delimiter,
    parted,
  };
}

/** The mean of weights, and whether all of them are above a half. @param {number[]} weights */
function shareOf(weights) {
  const mean = weights.length ? weights.reduce((sum, weight) => sum + weight, 0) / weights.length : 0;
  return { mean, every: weights.every((weight) => weight > 0.5) };
}

/**
 * Where most of a head's attention goes.
 *
 * @param {Layer} layer
 * @param {number} head  place in the head axis
 * @param {About} about
 * @param {Shown} shown
 * @returns {Place}
 */
function placeOf({ codes, nQueries, nKeys }, head, about, shown) {
  const { square, causal, plain, parted } = about;
  const shares = /** @type {Record<"itself" | "first" | "delimiter", number[]>} */ ({ itself: [], first: [], delimiter: [] });
  const furthest = Math.min(FURTHEST, Math.floor(nKeys / 2));
  const near = Array.from({ length: 2 * furthest + 1 }, () => /** @type {number[]} */ ([]));
  const most = /** @type {number[]} */ ([]);
  const delimiters = Array.from(about.delimiter.keys()).filter((key) => about.delimiter[key] && shown.key[key]);
  for (let query = 0; query < nQueries; query += 1) {
    if (!shown.query[query]) continue;
    const row = (head * nQueries + query) * nKeys;
    const at = (/** @type {number} */ key) => (shown.key[key] ? WEIGHTS[codes[row + key]] : 0);
    if (square && plain[query]) {
      shares.itself.push(at(query));
      for (let by = -Math.min(furthest, query); by <= (causal ? -1 : Math.min(furthest, nKeys - 1 - query)); by += 1) {
        if (by) near[by + furthest].push(at(query + by));
      }
    }
    if (query > 0 || !square) shares.first.push(at(0));
    if (parted[query]) shares.delimiter.push(delimiters.reduce((sum, key) => sum + at(key), 0));
    let code = 0;
    for (let key = 0; key < nKeys; key += 1) if (shown.key[key] && codes[row + key] > code) code = codes[row + key];
    most.push(WEIGHTS[code]);
  }
  const places = [
    ...near.map((weights, i) => ({ id: /** @type {const} */ ("near"), by: i - furthest, ...shareOf(weights) })),
    ...Object.entries(shares).map(([id, weights]) => ({ id: /** @type {keyof typeof shares} */ (id), by: 0, ...shareOf(weights) })),
  ];
  const { id, by, mean, every } = places.reduce((one, other) => (other.mean > one.mean ? other : one));
  return mean < CLEAR ? { id: "spread", by: 0, share: shareOf(most).mean, every: false } : { id, by, share: mean, every };
}

/** The sentence; empty where no head is on. @param {Looked} looked @returns {Part[]} */
export function sentenceOf(looked) {
  if (!looked.heads.length) return [];
  const { example, layer, heads, shown, query, key } = looked;
  if (query !== null && key !== null) {
    const weight = meanWeights(layer, heads, shown, { side: "query", index: query })[key];
    const [from, to] = [tokenName(example.tokens, query), tokenName(example.keyTokens, key)];
    return [where(looked), { token: from }, " looks at ", { token: to }, ` with ${percent(weight)}.`];
  }
  if (query !== null) return oneToken(looked, { side: "query", index: query });
  if (key !== null) return oneToken(looked, { side: "key", index: key });
  return clearestHead(looked);
}

/** A sentence as one text. @param {Part[]} parts */
export function wordsOf(parts) {
  return parts.map((part) => (typeof part === "string" ? part : part.token)).join("");
}

/** @param {number} share */
function percent(share) {
  const value = share * 100;
  return value > 0 && value < 1 ? "less than 1\u202f%" : `${Math.round(value)}\u202f%`;
}

/** @param {Looked} looked */
function where({ example, numbers = example.heads, layer, heads }) {
  if (heads.length === 1) return `Head ${numbers[heads[0]]} of layer ${layer.number}: `;
  return `Layer ${layer.number}, the mean of ${heads.length} heads: `;
}

/** @param {Looked} looked @returns {Part[]} */
function clearestHead({ example, numbers = example.heads, layer, heads, shown }) {
  const about = aboutTokens(example);
  const places = heads.map((head) => ({ head, ...placeOf(layer, head, about, shown) }));
  const rank = (/** @type {Place} */ { id, share }) => (id === "spread" ? share - 1 : share);
  const best = places.reduce((one, other) => (rank(other) > rank(one) ? other : one));
  const name = `Head ${numbers[best.head]} of layer ${layer.number}`;
  const told = heads.length > 1 ? `${name}, the clearest of ${heads.length}: ` : `${name}: `;
  if (best.id === "spread") return [`${told}its tokens look at many places; the largest weight of each is ${percent(best.share)} on average.`];
  const who = best.every ? "every token looks at " : "a token looks mostly at ";
  return [told, who, ...named(best, example, about), `, ${percent(best.share)}${best.every ? "" : " on average"}.`];
}

/** A place in words. @param {Place} place @param {Example} example @param {About} about @returns {Part[]} */
function named({ id, by }, { keyTokens }, { delimiter }) {
  if (id === "first") return [WORDS.first, { token: tokenName(keyTokens, 0) }];
  if (id === "delimiter") return [{ token: tokenName(keyTokens, delimiter.indexOf(1)) }];
  if (id === "itself") return [WORDS.itself];
  if (Math.abs(by) === 1) return [by < 0 ? WORDS.previous : WORDS.next];
  return [by < 0 ? `the one ${-by} places before it` : `the one ${by} places after it`];
}

/** @param {Looked} looked @param {Focus} focus @returns {Part[]} */
function oneToken(looked, focus) {
  const { example, layer, heads, shown } = looked;
  const means = meanWeights(layer, heads, shown, focus);
  const [best] = largest(means, 1, 0);
  const [own, others] = focus.side === "query" ? [example.tokens, example.keyTokens] : [example.keyTokens, example.tokens];
  const token = { token: tokenName(own, focus.index) };
  if (best === undefined || !means[best]) {
    return [where(looked), token, focus.side === "query" ? " looks at nothing that is shown." : " is looked at by nothing that is shown."];
  }
  const verb = focus.side === "query" ? " looks most at " : " is looked at most by ";
  return [where(looked), token, verb, { token: tokenName(others, best) }, `, ${percent(means[best])}.`];
}

/**
 * Where each head of a layer looks.
 *
 * @param {Example} example
 * @param {Layer} layer
 * @returns {Place[]}
 */
export function placesIn(example, layer) {
  const about = aboutTokens(example);
  return Array.from({ length: layer.nHeads }, (_, head) => placeOf(layer, head, about, allOf(example)));
}

/** All tokens take part. @param {Example} example @returns {Shown} */
function allOf({ tokens, keyTokens }) {
  return { query: new Uint8Array(tokens.text.length).fill(1), key: new Uint8Array(keyTokens.text.length).fill(1) };
}

/**
 * The sentence of one head whose weights are there as numbers.
 *
 * @param {Example} example
 * @param {{layer: number, head: number, query: number | null, key: number | null}} asked  numbers in the model
 * @param {Float32Array} probs  (query, key)
 * @returns {Part[]}
 */
export function sentenceOfHead(example, { layer: number, head, query, key }, probs) {
  const [nQueries, nKeys] = [example.tokens.text.length, example.keyTokens.text.length];
  const codes = codesOf(probs);
  const layer = { number, nHeads: 1, nQueries, nKeys, size: nQueries, codes };
  return sentenceOf({ example, numbers: [head], layer, heads: [0], shown: allOf(example), query, key });
}

/**
 * The sentence of one row of weights: where a token looks.
 *
 * @param {Example} example
 * @param {{layer: number, head: number, key: number | null}} asked  numbers in the model
 * @param {{query: number, weights: Float64Array}} row  the weights of each key
 * @returns {Part[]}
 */
export function sentenceOfRow({ tokens, keyTokens }, { layer, head, key }, { query, weights }) {
  const best = key ?? largest(weights, 1, 0)[0];
  const [verb, ending] = key === null ? [" looks most at ", ","] : [" looks at ", " with"];
  return [`Head ${head} of layer ${layer}: `, { token: tokenName(tokens, query) }, verb, { token: tokenName(keyTokens, best) }, `${ending} ${percent(weights[best])}.`];
}

/**
 * The sentence of what layers would predict: the answer at a position, and from which layer on it is given.
 *
 * @param {Example} example
 * @param {Lens} lens
 * @param {number} position
 * @returns {Part[]}
 */
export function sentenceOfLens({ tokens }, { strings, probs, points }, position) {
  const last = points.length - 1;
  const answer = strings[last][position][0];
  let first = last;
  while (first > 0 && strings[first - 1][position][0] === answer) first -= 1;
  const since = { embed: "from the embedding on" }[points[first]] ?? `from layer ${points[first].replace(/\D+/g, "")} on`;
  const said = first === last ? "the last layer alone says so" : `${since} every layer says so`;
  const alone = { text: [answer], raw: [null], special: [0], segment: [0], piece: [0] };
  return ["At ", { token: tokenName(tokens, position) }, " the model answers ", { token: tokenName(alone, 0) }, `, ${percent(probs[last][position][0])}; ${said}.`];
}
