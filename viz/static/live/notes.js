/** What a saved page says of its runs, since it can run nothing: the changes, and what was predicted. */

import { percent, tokenName } from "../core/text/text.js";
import { editInWords } from "./edits.js";
import { namedExamples } from "./pictures.js";

/** Tokens of a prediction that are named. */
const NAMED = 5;

/**
 * The examples of the runs, with their notes.
 *
 * @param {import("./workbench.js").Shown} shown
 * @param {import("./edits.js").Edit[]} edits
 */
export function notedExamples(shown, edits) {
  const { tokens } = shown.before.example;
  const changes = edits.map((edit) => editInWords(edit, (position) => tokenName(tokens, position)));
  const noted = new Map([[shown.before.example, said(tokens, shown.predictions.before)]]);
  if (shown.after) noted.set(shown.after.example, [`Changed: ${changes.join("; ")}.`, ...said(tokens, shown.predictions.after ?? [])]);
  return namedExamples(shown).map((example) => ({
    blocks: example.blocks,
    lens: () => example.lens(),
    header: { ...example.header, notes: [...example.header.notes, ...(noted.get(example) ?? [])] },
  }));
}

/**
 * @param {import("../core/data/data.js").Tokens} tokens
 * @param {import("../engine/engine.js").Prediction[]} predictions
 */
function said(tokens, predictions) {
  return predictions.map(({ position, candidates }) => {
    const words = candidates.slice(0, NAMED).map(({ text, prob }) => `“${text.trim()}” ${percent(prob)}`);
    return `Predicted at “${tokenName(tokens, position)}”, token ${position}: ${words.join(", ")}.`;
  });
}
