/** Was or were: what the choice depends on. */

import { rounded } from "./exercise.js";
import { softmax } from "./sums.js";

/** @typedef {import("../../engine/engine.js").Edit} Edit */

const NOUNS = [["boy", "boys"], ["girl", "girls"], ["horse", "horses"], ["man", "men"], ["bird", "birds"], ["friend", "friends"], ["child", "children"], ["tree", "trees"], ["house", "houses"], ["woman", "women"]];
const ENDINGS = ["very tired.", "very happy.", "in the garden.", "very old.", "not there.", "near the river."];
const BOYS = "The boys [MASK] very tired.";
const FAR = "the men who saw the horse [MASK] very tired.";
/** @type {Edit} */
const SUBJECT = { quantity: "scores", change: "hide", key: 2 };

/**
 * @param {number} layer
 * @param {number} head
 * @returns {Edit}
 */
const off = (layer, head) => ({ quantity: "z", change: "zero", layer, head });

/**
 * The probabilities of was and were at the mask.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number[]} ids
 * @param {string} text
 * @param {Edit[]} [edits]
 */
async function wasWere(lab, [was, were], text, edits = []) {
  const run = await lab.run(text, edits);
  const probs = softmax(await run.logits(run.place("[MASK]")));
  return { was: probs[was], were: probs[were] };
}

/** @param {string[]} endings */
const pairsOf = (endings) => NOUNS.flatMap(([one, many]) => endings.map((end) => [`The ${one} [MASK] ${end}`, `The ${many} [MASK] ${end}`]));

/**
 * The plurals of the pairs of which the model has both forms right.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number[]} ids
 * @param {string[]} endings
 */
async function rightOnes(lab, ids, endings) {
  const right = [];
  for (const [one, many] of pairsOf(endings)) {
    const [single, plural] = [await wasWere(lab, ids, one), await wasWere(lab, ids, many)];
    if (single.was >= single.were && plural.were > plural.was) right.push(many);
  }
  return right;
}

/**
 * How many of the texts have was before were, with the edits.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number[]} ids
 * @param {string[]} texts
 * @param {Edit[]} edits
 */
async function flips(lab, ids, texts, edits) {
  let count = 0;
  for (const text of texts) {
    const { was, were } = await wasWere(lab, ids, text, edits);
    count += Number(was >= were);
  }
  return count;
}

/** @type {import("./exercise.js").Exercise} */
export const agreement = {
  title: "was or were",
  minutes: 10,
  model: "tiny-bert",
  about: "A verb agrees with its subject. Which part of the model carries the number of the subject to the mask?",
  steps: [
    {
      ask: () => `${pairsOf(ENDINGS).length} pairs such as “The boy [MASK] very tired.” and “The boys [MASK] very tired.”: in how many does the model prefer was for the one and were for the many?`,
      between: [0, 60],
      tolerance: () => 6,
      async reveal(lab) {
        const ids = await lab.ids("was were");
        const right = (await rightOnes(lab, ids, ENDINGS)).length;
        return { answer: right, numbers: { right }, said: `${right} of ${pairsOf(ENDINGS).length}.`, means: "The model agrees with a subject that stands right before the mask.", show: { text: BOYS } };
      },
    },
    {
      ask: () => `“${BOYS}”: the subject is hidden from all tokens. In how many of the plurals that were right does was come before were now?`,
      between: [0, 60],
      tolerance: () => 6,
      async reveal(lab) {
        const ids = await lab.ids("was were");
        const right = await rightOnes(lab, ids, ENDINGS);
        const hidden = await flips(lab, ids, right, [SUBJECT]);
        return { answer: hidden, numbers: { hidden }, said: `${hidden} of ${right.length}.`, means: "All that the mask knows of the number comes from the subject; without it, it says was.", show: { text: BOYS, edits: [SUBJECT] } };
      },
    },
    {
      ask: () => "One head alone is set to zero. Which one makes the plural flip in nearly all of these sentences?",
      choices: Array.from({ length: 16 }, (_, i) => `${Math.floor(i / 4)}-${i % 4}`),
      async reveal(lab) {
        const ids = await lab.ids("was were");
        const right = await rightOnes(lab, ids, ENDINGS.slice(0, 1));
        /** @type {Record<string, number>} */
        const numbers = {};
        for (let layer = 0; layer < lab.about.layers; layer += 1) {
          for (let head = 0; head < lab.about.heads; head += 1) numbers[`${layer}-${head}`] = await flips(lab, ids, right, [off(layer, head)]);
        }
        const [[first, most], [, next]] = Object.entries(numbers).sort(([, one], [, other]) => other - one);
        const [layer, head] = first.split("-").map(Number);
        return {
          answer: first,
          numbers,
          said: `Head ${first} flips ${most} of ${right.length}; no other flips more than ${next}.`,
          means: "Head 0-1 looks at the previous token: it carries the number of the subject to the mask.",
          show: { text: BOYS, edits: [off(layer, head)], view: { layer, head } },
        };
      },
    },
    {
      ask: () => `“${FAR}”: the men were, the horse was. Which of the two does the model prefer?`,
      choices: ["was", "were"],
      async reveal(lab) {
        const numbers = await wasWere(lab, await lab.ids("was were"), FAR);
        return {
          answer: numbers.was > numbers.were ? "was" : "were",
          numbers,
          said: `was ${rounded(numbers.was)}, were ${rounded(numbers.were)}.`,
          means: "The model agrees with its neighbour, not with its subject: the pairs, where both are one, could not show it.",
          show: { text: FAR, view: { layer: 0, head: 1 } },
        };
      },
    },
  ],
};
