/** Vig's neurons: whether the same dimensions of query times key decide for every query. */

import { rounded } from "./exercise.js";
import { largestAt, mean } from "./sums.js";

const TEXT = "the small horse ran into the old house and the children were happy";
const LARGEST = 4;

/**
 * Of each query, query times key dimension by dimension, at the key with the largest weight.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number} layer
 * @param {number} head
 */
async function productsOf(lab, layer, head) {
  const run = await lab.run(TEXT);
  const products = [];
  for (let query = 0; query < run.length; query += 1) {
    const key = largestAt(await run.row("probs", layer, head, query));
    const looked = await run.row("key", layer, head, key);
    products.push(Array.from(await run.row("query", layer, head, query), (value, i) => value * looked[i]));
  }
  return products;
}

/**
 * The part of the four largest dimensions that two queries share, over all pairs.
 *
 * @param {number[][]} products
 */
function sharedOf(products) {
  const largest = products.map((row) => row.map((_, i) => i).sort((one, other) => row[other] - row[one]).slice(0, LARGEST));
  return mean(largest.flatMap((one, i) => largest.slice(i + 1).map((other) => one.filter((at) => other.includes(at)).length / LARGEST)));
}

/**
 * How many dimensions, the largest first, sum to 80 % of the positive part.
 *
 * @param {number[][]} products
 */
function dimensionsOf(products) {
  return mean(products.map((row) => {
    const sizes = row.map((value) => Math.max(0, value)).sort((one, other) => other - one);
    const all = sizes.reduce((sum, size) => sum + size, 0);
    let sum = 0;
    return sizes.findIndex((size) => (sum += size) >= 0.8 * all) + 1;
  }));
}

/** @type {import("./exercise.js").Exercise} */
export const neurons = {
  title: "Vig's neurons",
  minutes: 10,
  model: "tiny-bert",
  about: "Jesse Vig saw heads whose attention a few dimensions decide, the same ones for every token. Is it so here?",
  steps: [
    {
      ask: () => `Head 2-0 looks at [SEP]. Take the ${LARGEST} dimensions with the largest query times key, for each token of a text. Which part of them, 0 to 1, do two tokens share on average? By chance it would be ${LARGEST} of 32, 0.125.`,
      between: [0, 1],
      tolerance: () => 0.15,
      async reveal(lab) {
        const shared = sharedOf(await productsOf(lab, 2, 0));
        return { answer: shared, numbers: { "2-0 shared": shared }, said: `${rounded(shared)} of them.`, means: "Mostly the same dimensions, whatever the token: the head looks for [SEP] whoever asks.", show: { text: TEXT, view: { view: "neuron", layer: 2, head: 0, query: 3 } } };
      },
    },
    {
      ask: () => "Head 0-1 looks at the previous token. Which part do two tokens share there?",
      between: [0, 1],
      tolerance: () => 0.1,
      async reveal(lab) {
        const [previous, next] = [sharedOf(await productsOf(lab, 0, 1)), sharedOf(await productsOf(lab, 0, 2))];
        return { answer: previous, numbers: { "0-1 shared": previous, "0-2 shared": next }, said: `${rounded(previous)}; head 0-2, which looks at the next token, ${rounded(next)}.`, means: "Little more than chance: each position has dimensions of its own.", show: { text: TEXT, view: { view: "neuron", layer: 0, head: 1, query: 3 } } };
      },
    },
    {
      ask: () => "How many of 32 dimensions, the largest first, make up 80 % of the positive products in head 2-0, on average?",
      between: [1, 32],
      tolerance: () => 3,
      async reveal(lab) {
        const [delimiter, next] = [dimensionsOf(await productsOf(lab, 2, 0)), dimensionsOf(await productsOf(lab, 0, 2))];
        return { answer: delimiter, numbers: { "2-0 dimensions": delimiter, "0-2 dimensions": next }, said: `${rounded(delimiter)}, against ${rounded(next)} in head 0-2.`, means: "The same dimensions, but many of them: “a few neurons” does not hold for this head.", show: { text: TEXT, view: { view: "neuron", layer: 2, head: 0, query: 3 } } };
      },
    },
  ],
};
