/** One weight of head 0-2, from the dot product on. */

import { rounded } from "./exercise.js";
import { dot, softmax } from "./sums.js";

const TEXT = "the horse quickly ran away";
const TIRED = "the horses [MASK] very tired.";
const [LAYER, HEAD] = [0, 2];

/** @param {import("./lab.js").Lab} lab */
async function given(lab) {
  const run = await lab.run(TEXT);
  const [query, key] = [run.place("horse"), run.place("quickly")];
  const product = dot(await run.row("query", LAYER, HEAD, query), await run.row("key", LAYER, HEAD, key));
  const scores = await run.row("scores", LAYER, HEAD, query);
  const probs = await run.row("probs", LAYER, HEAD, query);
  return { run, query, key, product, scores, probs, scale: Math.sqrt(lab.about.dHead) };
}

/** @type {import("./exercise.js").Exercise} */
export const oneWeight = {
  title: "One weight by hand",
  minutes: 10,
  model: "tiny-bert",
  about: "From a dot product to one weight: the scale and the softmax. A calculator helps.",
  steps: [
    {
      ask: async (lab) => {
        const { product } = await given(lab);
        return `“${TEXT}”, head ${LAYER}-${HEAD}: the query of “horse” times the key of “quickly”, summed over ${lab.about.dHead} dimensions, is ${rounded(product)}. The score is that divided by √${lab.about.dHead}. What is the score?`;
      },
      tolerance: (answer) => Math.abs(answer) * 0.01,
      async reveal(lab) {
        const { product, query, scores, key, scale } = await given(lab);
        return {
          answer: scores[key],
          numbers: { dot: product, score: scores[key] },
          said: `${rounded(product)} · ${rounded(1 / scale)} = ${rounded(scores[key])}.`,
          means: "The scale keeps scores from growing with the number of dimensions.",
          show: { text: TEXT, view: { layer: LAYER, head: HEAD, query } },
        };
      },
    },
    {
      ask: async (lab) => {
        const { run, scores, key } = await given(lab);
        const others = run.words.flatMap((word, i) => (i === key ? [] : [`${word} ${rounded(scores[i])}`]));
        return `“quickly” has the score ${rounded(scores[key])}, the others: ${others.join(", ")}. The softmax is exp(score) divided by the sum of exp of all scores. Which weight, 0 to 1, does “horse” give “quickly”?`;
      },
      between: [0, 1],
      tolerance: () => 0.02,
      async reveal(lab) {
        const { query, key, probs } = await given(lab);
        return {
          answer: probs[key],
          numbers: { weight: probs[key] },
          said: `The weight is ${rounded(probs[key])}.`,
          means: "A score that lies a few units above the others takes nearly all the weight.",
          show: { text: TEXT, view: { layer: LAYER, head: HEAD, query } },
        };
      },
    },
    {
      ask: (lab) => `Now without the scale: every score of “horse” is √${lab.about.dHead} times as large. Which weight does “quickly” get?`,
      between: [0, 1],
      tolerance: () => 0.01,
      async reveal(lab) {
        const { query, key, scores, scale } = await given(lab);
        const large = Array.from(scores, (score) => score * scale);
        const weight = softmax(large)[key];
        // Each score of the one query as it would be; the edits know no factor.
        const edits = large.map((value, at) => /** @type {const} */ ({ quantity: "scores", change: "set", layer: LAYER, head: HEAD, position: query, key: at, value }));
        return {
          answer: weight,
          numbers: { unscaled: weight },
          said: `The weight becomes ${rounded(weight)}.`,
          means: "Without the scale the softmax picks one token and forgets the rest.",
          show: { text: TEXT, edits: [...edits], view: { layer: LAYER, head: HEAD, query } },
        };
      },
    },
    {
      ask: async (lab) => `And with all scores of “horse” set to 0? The text has ${(await lab.run(TEXT)).length} tokens, [CLS] and [SEP] among them. Which weight does “quickly” get?`,
      between: [0, 1],
      tolerance: () => 0.005,
      async reveal(lab) {
        const { query, key } = await given(lab);
        /** @type {import("../../engine/engine.js").Edit[]} */
        const edits = [{ quantity: "scores", change: "zero", layer: LAYER, head: HEAD, position: query }];
        const weight = (await (await lab.run(TEXT, edits)).row("probs", LAYER, HEAD, query))[key];
        return {
          answer: weight,
          numbers: { equal: weight },
          said: `${rounded(weight)}: one part for each token.`,
          means: "Equal scores make attention a plain mean of all values.",
          show: { text: TEXT, edits, view: { layer: LAYER, head: HEAD, query } },
        };
      },
    },
    {
      ask: () => `“${TIRED}” with all scores of every head set to 0, so that each head takes a plain mean. Which word does the model put first: are, were, was or is?`,
      choices: ["are", "were", "was", "is"],
      async reveal(lab) {
        /** @type {import("../../engine/engine.js").Edit[]} */
        const edits = [{ quantity: "scores", change: "zero" }];
        const [was] = await lab.ids("was");
        const before = await lab.run(TIRED);
        const place = before.place("[MASK]");
        const clean = softmax(await before.logits(place))[was];
        const run = await lab.run(TIRED, edits);
        const first = await run.first(place);
        const prob = softmax(await run.logits(place))[was];
        return {
          answer: first,
          numbers: { "was before": clean, was: prob, top: Number(first === "was") },
          said: `The model says “${first}” first; “was” goes from ${rounded(clean)} to ${rounded(prob)}.`,
          means: "Without attention the mask no longer knows its subject, and the commonest form wins.",
          show: { text: TIRED, edits },
        };
      },
    },
  ],
};
