/**
 * What is to be seen in pictures of more than one layer's attention, in one sentence: a whole model, a
 * shaded text, what layers would predict.
 *
 * @typedef {import("./example.js").Example} Example
 * @typedef {import("./sentence.js").Part} Part
 */

import { tokenName } from "../text/text.js";
import { largest } from "./attention.js";
import { CLEAR, percent, WORDS } from "./sentence.js";
import { aboutTokens } from "./statistics.js";

/** @type {Record<string, (example: Example) => Part[]>} */
const MEASURED = {
  previous: () => [WORDS.previous],
  next: () => [WORDS.next],
  same: () => ["itself or its equals"],
  first: ({ keyTokens }) => [WORDS.first, { token: tokenName(keyTokens, 0) }],
  delimiter: (example) => [{ token: tokenName(example.keyTokens, aboutTokens(example).delimiter.indexOf(1)) }],
};

/**
 * The sentence of a whole model: its clearest head.
 *
 * @param {Example} example
 * @param {import("./measures.js").Measures} measures  finished, or else it says how many heads there are
 * @returns {Part[]}
 */
export function sentenceOfModel(example, measures) {
  const { layers, heads } = example;
  const found = Object.keys(MEASURED).flatMap((id) =>
    Array.from({ length: measures.finished ? measures.total : 0 }, (_, place) => ({ id, place, share: measures.of(place, id) })),
  );
  const best = found.reduce((one, other) => (other.share > (one?.share ?? 0) ? other : one), found[0]);
  if (!best || !(best.share >= CLEAR)) return [`${layers.length * heads.length} heads: each is a picture of where every token looks, a row a token.`];
  const [layer, head] = [layers[Math.floor(best.place / heads.length)], heads[best.place % heads.length]];
  const among = layers.length * heads.length > 1 ? `, the clearest of ${layers.length * heads.length}` : "";
  return [
    `Head ${head} of layer ${layer}${among}: a token looks mostly at `,
    ...MEASURED[best.id](example),
    `, ${percent(best.share)} on average.`,
  ];
}

/**
 * The sentence of a shaded text: the token with the largest number.
 *
 * @param {{measure: import("./shading.js").Measure, name: string, where: string, tokens: import("./data.js").Tokens, others: import("./data.js").Tokens, chosen: number | null, shading: import("./shading.js").Shading}} scene
 * @returns {Part[]}
 */
export function sentenceOfText({ measure, name, where: place, tokens, others, chosen, shading: { values } }) {
  const [best] = largest(values.map(Math.abs), 1, 0);
  const needed = measure === "from" || measure === "to";
  if (best === undefined || !values[best] || (needed && chosen === null)) return [];
  const token = { token: tokenName(tokens, best) };
  const own = chosen === null ? "" : { token: tokenName(others, chosen) };
  if (measure === "relevance") return [token, ` counts most, by ${name}`, ...(own ? [" for ", own] : []), "."];
  if (measure === "received") return [`${place}: `, token, ` is looked at most, with ${percent(values[best])} of all attention.`];
  return [`${place}: `, own, measure === "from" ? " looks most at " : " is looked at most by ", token, `, ${percent(values[best])}.`];
}

/**
 * The sentence of what layers would predict: the answer at a position, and from which layer on it is given.
 *
 * @param {Example} example
 * @param {import("./data.js").Lens} lens
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
