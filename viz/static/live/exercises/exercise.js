/**
 * What an exercise is: questions whose numbers come from the model at hand, once a guess is made.
 *
 * @typedef {import("../../engine/engine.js").Edit} Edit
 * @typedef {import("./lab.js").Lab} Lab
 *
 * @typedef {object} Revealed
 * @property {number | string} answer
 * @property {Record<string, number>} numbers  all that is shown, by name
 * @property {string} said  what came out, in words
 * @property {string} means
 * @property {{text: string, edits?: Edit[], view?: {layer: number, head: number, query?: number, view?: string}}} show
 *   what the page runs and draws then
 *
 * @typedef {object} Step
 * @property {(lab: Lab) => string | Promise<string>} ask  the question; it may name what is given
 * @property {string[]} [choices]  none: the guess is a number
 * @property {[number, number]} [between]  of a number: the smallest and the largest guess
 * @property {(answer: number) => number} [tolerance]  of a number: how far off is still right
 * @property {(lab: Lab) => Promise<Revealed>} reveal
 *
 * @typedef {object} Exercise
 * @property {string} title
 * @property {number} minutes
 * @property {"tiny-bert" | "tiny-gpt2"} model
 * @property {string} about  what it is about, and nothing that a step asks
 * @property {Step[]} steps
 */

/**
 * @param {Step} step
 * @param {string} written  the guess, as the field or the choice gives it
 * @returns {number | string | null}  null: no guess
 */
export function guessOf({ choices, between = [-Infinity, Infinity] }, written) {
  if (choices) return choices.includes(written) ? written : null;
  const [, text, sign] = /^([^%]*?)\s*(%?)$/.exec(written.trim().replace(",", ".")) ?? ["", "", ""];
  if (sign && between[1] !== 1) return null;
  const value = text === "" ? NaN : Number(text) / (sign ? 100 : 1);
  return Number.isFinite(value) && value >= between[0] && value <= between[1] ? value : null;
}

/**
 * Right, or by how much not.
 *
 * @param {Step} step
 * @param {number | string} guess
 * @param {number | string} answer
 * @returns {{right: boolean, said: string}}
 */
export function judged({ tolerance = () => 0 }, guess, answer) {
  if (typeof guess !== "number" || typeof answer !== "number") {
    return guess === answer ? { right: true, said: "Right." } : { right: false, said: `You said “${guess}”; it is “${answer}”.` };
  }
  const off = Math.abs(guess - answer);
  const right = off <= tolerance(answer);
  return { right, said: `${right ? "Right" : "Not quite"}: you said ${guess}, it is ${rounded(answer)}, so you are off by ${rounded(off)}.` };
}

/** A number as it is read: four digits behind the point, fewer of large ones. @param {number} value */
export function rounded(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 0.001 ? String(Number(value.toFixed(4))) : value.toExponential(1);
}
