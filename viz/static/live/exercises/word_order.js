/**
 * Where heads 0-1 and 0-2 know the order of words from. The position embeddings cannot be edited: the
 * scores of one head are worked out again with others, and set.
 */

import { rounded } from "./exercise.js";
import { dot, mean, meanWeight } from "./sums.js";

const TEXT = "the small horse ran into the old house and the children were happy";
const DRAWN = "water green under king seven door often child horse red about stone not";
/** Heads of layer 0. */
const [PREVIOUS, NEXT] = [1, 2];

/**
 * The scores of a head of layer 0, were other position embeddings added to its words.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number} head
 * @param {(position: number, length: number) => number} placed
 */
async function scoresOf(lab, head, placed) {
  const { run } = await lab.run(TEXT);
  const { dModel, dHead, built } = lab.about;
  const names = ["word.weight", "position.weight", "segment.weight", "embed_norm.weight", "embed_norm.bias"];
  const [word, position, segment, scale, shift] = await Promise.all(names.map(async (name) => (await lab.weight(`body.${name}`)).values));
  const inputs = run.ids.map((id, i) => {
    const at = placed(i, run.ids.length);
    const sum = Array.from({ length: dModel }, (_, d) => word[id * dModel + d] + position[at * dModel + d] + segment[d]);
    const centre = mean(sum);
    const deviation = Math.sqrt(mean(sum.map((value) => (value - centre) ** 2)) + built.eps);
    return sum.map((value, d) => ((value - centre) / deviation) * scale[d] + shift[d]);
  });
  /** @param {string} name */
  const projected = async (name) => {
    const { values } = await lab.weight(`body.groups.0.attention.${name}.weight`);
    const bias = (await lab.weight(`body.groups.0.attention.${name}.bias`)).values;
    const rows = Array.from({ length: dHead }, (_, d) => head * dHead + d);
    return inputs.map((input) => rows.map((row) => dot(values.subarray(row * dModel, (row + 1) * dModel), input) + bias[row]));
  };
  const [queries, keys] = [await projected("query"), await projected("key")];
  return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(dHead)));
}

/**
 * @param {number[][]} scores
 * @param {number} head
 * @returns {import("../../engine/engine.js").Edit[]}
 */
function editsOf(scores, head) {
  return scores.flatMap((row, position) => row.map((value, key) => ({ quantity: "scores", change: /** @type {const} */ ("set"), layer: 0, head, position, key, value })));
}

/**
 * @param {import("./lab.js").Lab} lab
 * @param {string} text
 * @param {number} head
 * @param {number} step
 * @param {import("../../engine/engine.js").Edit[]} [edits]
 */
async function weightOf(lab, text, head, step, edits = []) {
  return meanWeight(await (await lab.run(text, edits)).read("probs", 0), head, step);
}

/** @type {import("./exercise.js").Exercise} */
export const wordOrder = {
  title: "Where word order lives",
  minutes: 10,
  model: "tiny-bert",
  about: "Two heads look at a neighbour. Is it the words that tell them which, or the positions?",
  steps: [
    {
      ask: () => `“${TEXT}”: head 0-1 looks at the previous token. Which weight, 0 to 1, does a token give the one before it, on average?`,
      between: [0, 1],
      tolerance: () => 0.1,
      async reveal(lab) {
        const [previous, next] = [await weightOf(lab, TEXT, PREVIOUS, -1), await weightOf(lab, TEXT, NEXT, 1)];
        return {
          answer: previous,
          numbers: { "previous words": previous, "next words": next },
          said: `${rounded(previous)}. Head 0-2 gives the next token ${rounded(next)}.`,
          means: "Both heads do one thing nearly all the time.",
          show: { text: TEXT, view: { layer: 0, head: PREVIOUS } },
        };
      },
    },
    {
      ask: () => `The words are taken at random: “${DRAWN}”. Which weight does head 0-1 give the previous token now?`,
      between: [0, 1],
      tolerance: () => 0.1,
      async reveal(lab) {
        const [previous, next] = [await weightOf(lab, DRAWN, PREVIOUS, -1), await weightOf(lab, DRAWN, NEXT, 1)];
        return {
          answer: previous,
          numbers: { "previous drawn": previous, "next drawn": next },
          said: `${rounded(previous)}, and head 0-2 gives the next token ${rounded(next)}.`,
          means: "Which words stand there hardly matters, so it must be the positions.",
          show: { text: DRAWN, view: { layer: 0, head: PREVIOUS } },
        };
      },
    },
    {
      ask: () => "The first text again, but each word gets the position embedding of position 0. Which weight does head 0-1 give the previous token?",
      between: [0, 1],
      tolerance: () => 0.1,
      async reveal(lab) {
        const edits = editsOf(await scoresOf(lab, PREVIOUS, () => 0), PREVIOUS);
        const previous = await weightOf(lab, TEXT, PREVIOUS, -1, edits);
        const next = await weightOf(lab, TEXT, NEXT, 1, editsOf(await scoresOf(lab, NEXT, () => 0), NEXT));
        return {
          answer: previous,
          numbers: { "previous equal": previous, "next equal": next },
          said: `${rounded(previous)}; head 0-2 gives the next token ${rounded(next)}. The picture changes head 0-1 alone.`,
          means: "Without positions the heads no longer know which token is the neighbour.",
          show: { text: TEXT, edits, view: { layer: 0, head: PREVIOUS } },
        };
      },
    },
    {
      ask: () => "Now the position embeddings run backwards: the last token gets the first. Where does head 0-1 look?",
      choices: ["the previous token", "the next token", "[SEP]"],
      async reveal(lab) {
        const edits = editsOf(await scoresOf(lab, PREVIOUS, (at, length) => length - 1 - at), PREVIOUS);
        const run = await lab.run(TEXT, edits);
        const probs = await run.read("probs", 0);
        const [previous, next] = [meanWeight(probs, PREVIOUS, -1), meanWeight(probs, PREVIOUS, 1)];
        return {
          answer: next > previous ? "the next token" : "the previous token",
          numbers: { "next reversed": next },
          said: `It gives the next token ${rounded(next)} and the previous one ${rounded(previous)}.`,
          means: "“Previous” means one position lower, and nothing else. The word order of this head lives in the position embeddings.",
          show: { text: TEXT, edits, view: { layer: 0, head: PREVIOUS } },
        };
      },
    },
  ],
};
