/** What is told of two runs: how far attention moved, and what became of the predictions. */

import { weightOf } from "../core/data/attention.js";

/**
 * @typedef {import("../engine/engine.js").Candidate} Candidate
 *
 * @typedef {object} Row  of the bars: a predicted token before and after
 * @property {number} id
 * @property {string} text
 * @property {number | null} before  probability; null: not among those that the engine names
 * @property {number | null} after
 */

/**
 * How far the attention of each head of a layer moved: the mean over tokens of half the sum of
 * |after - before|, from 0 (the same) to 1 (nothing in common).
 *
 * @param {import("../core/data/example.js").Layer} before
 * @param {import("../core/data/example.js").Layer} after
 * @returns {number[]}
 */
export function attentionChange(before, after) {
  const cells = before.nQueries * before.nKeys;
  return Array.from({ length: before.nHeads }, (_, head) => {
    let sum = 0;
    for (let i = head * cells; i < (head + 1) * cells; i += 1) {
      if (before.codes[i] !== after.codes[i]) sum += Math.abs(weightOf(after.codes[i]) - weightOf(before.codes[i]));
    }
    return sum / 2 / before.nQueries;
  });
}

/**
 * The most probable tokens of two predictions, those of the first before those of the second.
 *
 * @param {Candidate[]} before
 * @param {Candidate[] | null} after  null: nothing was changed
 * @param {number} most  of each
 * @returns {Row[]}
 */
export function predictionRows(before, after, most) {
  const named = new Map([...before.slice(0, most), ...(after ?? []).slice(0, most)].map((one) => [one.id, one.text]));
  const probOf = (/** @type {Candidate[]} */ all, /** @type {number} */ id) => all.find((one) => one.id === id)?.prob ?? null;
  return [...named].map(([id, text]) => ({
    id,
    text,
    before: probOf(before, id),
    after: after && probOf(after, id),
  }));
}
