/** What is seen, and what to try next, in a sentence each. */

import { percent, visible } from "../core/text/text.js";

/**
 * @param {import("../engine/engine.js").About} about
 * @param {import("../engine/engine.js").Prediction | null} before
 * @param {import("../engine/engine.js").Prediction | null} after
 * @param {{changes: number, strongest: {layer: number, head: number} | null}} more  strongest: the head without
 *   which the word is least probable
 */
export function sentenceOf({ model, predicts }, before, after, { changes, strongest }) {
  const first = before?.candidates[0];
  if (!first || !before) {
    return predicts === "masked"
      ? "Type: attention follows each key. Choose a word and mask it, and the model says what it would put there."
      : "Type: attention follows each key.";
  }
  const said = `“${visible(first.text.trim(), 24)}” (${percent(first.prob)})`;
  const does = {
    masked: `puts ${said} in the place of the masked word`,
    causal: `continues with ${said}`,
    classes: `says ${said} of this text`,
    none: "",
  }[predicts];
  const best = after?.candidates[0];
  if (!best) {
    const head = strongest ? `head ${strongest.head} of layer ${strongest.layer}` : "a head";
    return `${model} ${does}. Does it still say so without ${head}? Click it in the grid. Or type: everything follows.`;
  }
  const now = best.id === first.id ? `still “${visible(best.text.trim(), 24)}”, now ${percent(best.prob)}` : `“${visible(best.text.trim(), 24)}” (${percent(best.prob)})`;
  return `Without changes ${model} ${does}; with ${changes === 1 ? "your change" : `${changes} changes`} it says ${now}.`;
}

/**
 * The head whose number is lowest.
 *
 * @param {number[]} values  layer by layer
 * @param {number} heads
 */
export function strongestOf(values, heads) {
  const place = values.indexOf(Math.min(...values));
  return { layer: Math.floor(place / heads), head: place % heads };
}
