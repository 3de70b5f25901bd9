/** Copying: words that come again are continued as before. */

import { draws } from "./sums.js";

/** @typedef {import("../../engine/engine.js").Edit} Edit */

const WORDS = "red horse blue door green tree book water stone house child king fire road boat bird star ship hand wall".split(" ");
const COUNT = 100;
/** @type {Edit[]} */
const OFF = [0, 2, 3].map((head) => ({ quantity: "z", change: "zero", layer: 1, head }));

/** @param {string[]} words @param {number} again */
const textOf = (words, again) => [...words, ...words.slice(0, again)].join(" ");
const SHOWN = textOf(draws(WORDS, 1, 7)[0], 3);

/**
 * Of how many drawn lists the next word is the one that followed before.
 *
 * @param {import("./lab.js").Lab} lab
 * @param {number} length
 * @param {number} again  words that are repeated
 * @param {Edit[]} [edits]
 */
async function continued(lab, length, again, edits = []) {
  let right = 0;
  for (const words of draws(WORDS, COUNT, length)) {
    const run = await lab.run(textOf(words, again), edits);
    right += Number((await run.first(run.length - 1)) === words[again]);
  }
  return right;
}

/** @type {import("./exercise.js").Exercise} */
export const copying = {
  title: "Copying",
  minutes: 10,
  model: "tiny-gpt2",
  about: "A model reads words in no order, then the first of them again. Can it go on, and with what?",
  steps: [
    {
      ask: () => `Seven words, three of them again: “${SHOWN}”. Of ${COUNT} such lists, in how many is the next word the one that followed before?`,
      between: [0, COUNT],
      tolerance: () => 10,
      async reveal(lab) {
        const right = await continued(lab, 7, 3);
        return { answer: right, numbers: { all: right / COUNT }, said: `In ${right} of ${COUNT}.`, means: "It copies, although the order of the words means nothing.", show: { text: SHOWN } };
      },
    },
    {
      ask: () => `Three words, two of them again, as “${textOf(draws(WORDS, 1, 3)[0], 2)}”. In how many of ${COUNT}?`,
      between: [0, COUNT],
      tolerance: () => 10,
      async reveal(lab) {
        const right = await continued(lab, 3, 2);
        return { answer: right, numbers: { short: right / COUNT }, said: `In ${right} of ${COUNT}.`, means: "With so few words it often takes another guess. Ask for five words or more.", show: { text: textOf(draws(WORDS, 1, 3)[0], 2) } };
      },
    },
    {
      ask: () => `Seven words again, with heads 1-0, 1-2 and 1-3 set to zero. In how many of ${COUNT}?`,
      between: [0, COUNT],
      tolerance: () => 10,
      async reveal(lab) {
        const right = await continued(lab, 7, 3, OFF);
        return { answer: right, numbers: { without: right / COUNT }, said: `In ${right} of ${COUNT}.`, means: "Three of sixteen heads carry the copying: induction heads, which look at what followed the same word.", show: { text: SHOWN, edits: OFF, view: { layer: 1, head: 0 } } };
      },
    },
  ],
};
