/**
 * What the reader asks for: all that a run depends on, and what of it is shown beside the picture.
 *
 * @typedef {import("../engine/engine.js").Edit} Edit
 * @typedef {import("../engine/engine.js").Request} Request
 * @typedef {import("../engine/engine.js").Sampling} Sampling
 *
 * @typedef {object} Asked
 * @property {string} text
 * @property {string | null} second  the second text of a pair
 * @property {string | null} other  another prompt: to compare with, and to take values from
 * @property {Edit[]} edits
 * @property {Sampling} sampling
 * @property {"zero" | "mean" | "text"} to  what a click sets a head, a layer or a neuron to
 * @property {"change" | "effect" | null} shade  what the grid of heads shows; null: what fits
 * @property {number | null} place  the token whose prediction is shown; null: the first there is
 * @property {number | null} word  id of the predicted token that a sweep asks about; null: the first
 */

/** @type {Sampling} */
export const USUAL = { temperature: 1, topK: null, topP: null, seed: 0 };

/**
 * @param {string} text
 * @returns {Asked}
 */
export function askedOf(text) {
  return { text, second: null, other: null, edits: [], sampling: USUAL, to: "zero", shade: null, place: null, word: null };
}

/** One text, or two where the second has been begun. @param {Asked} asked */
export function textsOf({ text, second }) {
  return second ? [text, second] : [text];
}

/**
 * The request that an engine gets, with or without the edits.
 *
 * @param {Asked} asked
 * @param {boolean} edited
 * @returns {Request}
 */
export function requestOf(asked, edited) {
  const request = { texts: textsOf(asked), edits: edited ? asked.edits : [] };
  return asked.other === null ? request : { ...request, other: [asked.other] };
}
