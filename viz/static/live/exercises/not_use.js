/**
 * Attention is not use: the weight on [SEP], the values there, and what happens without. The gradient,
 * which shows the same, is not asked of an engine.
 */

import { rounded } from "./exercise.js";
import { divergence, dot, mean } from "./sums.js";

/** @typedef {import("../../engine/engine.js").Edit} Edit */

const TEXT = "The boys [MASK] very tired.";
const LATE = [2, 3];
const EARLY = [0, 1];

/**
 * @param {number[]} layers
 * @returns {Edit[]}
 */
const off = (layers) => layers.map((layer) => ({ quantity: "z", change: "zero", layer }));

/**
 * The mean weight on [SEP] of all heads and queries of the late layers.
 *
 * @param {import("./lab.js").Lab} lab
 */
async function resting(lab) {
  const run = await lab.run(TEXT);
  const found = [];
  for (const layer of LATE) {
    const { shape: [, , n], values } = await run.read("probs", layer);
    found.push(mean(values.filter((_, i) => i % n === n - 1)));
  }
  return mean(found);
}

/** The mean lengths of the values at [SEP] and between [CLS] and [SEP]. @param {import("./lab.js").Lab} lab */
async function lengths(lab) {
  const run = await lab.run(TEXT);
  /** @type {{sep: number[], others: number[]}} */
  const found = { sep: [], others: [] };
  for (const layer of LATE) {
    const { shape: [heads, n, width], values } = await run.read("value", layer);
    for (let at = 0; at < heads * n; at += 1) {
      const vector = values.subarray(at * width, (at + 1) * width);
      const length = Math.sqrt(dot(vector, vector));
      if (at % n === n - 1) found.sep.push(length);
      else if (at % n) found.others.push(length);
    }
  }
  return { sep: mean(found.sep), others: mean(found.others) };
}

/**
 * How far the prediction moves with the attention of whole layers off, in nats.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number[]} layers
 */
async function moved(lab, layers) {
  const before = await lab.run(TEXT);
  const place = before.place("[MASK]");
  const clean = await before.logits(place);
  return divergence(clean, await (await lab.run(TEXT, off(layers))).logits(place));
}

/** @type {import("./exercise.js").Exercise} */
export const notUse = {
  title: "Attention is not use",
  minutes: 10,
  model: "tiny-bert",
  about: "Heads can look at a token and take nothing from it.",
  steps: [
    {
      ask: () => `“${TEXT}”: which part of their weight, 0 to 1, do the eight heads of layers 2 and 3 give [SEP], on average?`,
      between: [0, 1],
      tolerance: () => 0.1,
      async reveal(lab) {
        const weight = await resting(lab);
        return { answer: weight, numbers: { weight }, said: `${rounded(weight)} of the weight.`, means: "They look at a token without meaning nearly all the time. What do they take from there?", show: { text: TEXT, view: { layer: 2, head: 0 } } };
      },
    },
    {
      ask: async (lab) => `A head takes the value vectors, times the weights. Between [CLS] and [SEP] the values of these heads are ${rounded((await lengths(lab)).others)} long on average. How long are those at [SEP]?`,
      between: [0, 10],
      tolerance: () => 0.3,
      async reveal(lab) {
        const { sep, others } = await lengths(lab);
        return { answer: sep, numbers: { "value sep": sep, "value others": others }, said: `${rounded(sep)} against ${rounded(others)}.`, means: "The values there are short: a head that looks at [SEP] adds little.", show: { text: TEXT, view: { layer: 2, head: 0 } } };
      },
    },
    {
      ask: () => "Layers 2 and 3 lose all attention: eight of sixteen heads are set to zero. How far does the prediction move? (Kullback-Leibler divergence in nats: 0 the same, above 1 another prediction)",
      between: [0, 20],
      tolerance: () => 0.1,
      async reveal(lab) {
        const late = await moved(lab, LATE);
        return { answer: late, numbers: { "late off": late }, said: `By ${rounded(late)} nats.`, means: "Nearly nothing: these heads looked at [SEP] to do nothing here.", show: { text: TEXT, edits: off(LATE) } };
      },
    },
    {
      ask: () => "And with layers 0 and 1 off instead?",
      choices: ["less than 0.1 nats", "0.1 to 1 nat", "more than 1 nat"],
      async reveal(lab) {
        const early = await moved(lab, EARLY);
        const answer = early < 0.1 ? "less than 0.1 nats" : early <= 1 ? "0.1 to 1 nat" : "more than 1 nat";
        return { answer, numbers: { "early off": early }, said: `By ${rounded(early)} nats.`, means: "Half of the heads do the work. A large weight alone did not tell which half.", show: { text: TEXT, edits: off(EARLY) } };
      },
    },
  ],
};
