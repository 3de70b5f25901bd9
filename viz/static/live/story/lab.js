/**
 * What a step of the story is: a question whose number comes from the model at hand, once a guess is made; and what it
 * asks of the model.
 *
 * @import { Edit } from "../../engine/engine.js"
 *
 * @typedef {object} Scene  what the page runs and draws
 * @property {string} text
 * @property {Edit[]} [edits]
 * @property {{layer: number, head: number, query?: number, view?: string}} [view]
 *
 * @typedef {object} Revealed
 * @property {number | string} answer
 * @property {Record<string, number>} numbers  all that is shown, by name
 * @property {string} said  what came out, in words
 * @property {string} means
 * @property {Partial<Scene>} show  what becomes other in the scene
 *
 * @typedef {object} Step
 * @property {Scene} scene  before the guess; it shows nothing that is asked
 * @property {string | ((lab: Lab) => string | Promise<string>)} ask  the question; it may name what is given
 * @property {string[]} [choices]  none: the guess is a number
 * @property {[number, number]} [between]  of a number: the smallest and the largest guess
 * @property {number} [tolerance]  of a number: how far off is still right; twice as far is close
 * @property {(lab: Lab) => Promise<Revealed>} reveal
 *
 * @typedef {object} Chapter
 * @property {string} title
 * @property {"tiny-bert" | "tiny-gpt2"} model
 * @property {string} about  what it is about, and nothing that a step asks
 * @property {Step[]} steps
 */

import { headsAt, rowAt } from "../../core/data/source.js";

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
 * Right or not, and what it is.
 *
 * @param {Step} step
 * @param {number | string} guess
 * @param {number | string} answer
 * @returns {{right: boolean, said: string}}
 */
export function judged({ tolerance = 0 }, guess, answer) {
  if (typeof guess !== "number" || typeof answer !== "number") {
    return guess === answer ? { right: true, said: "✓ Right." } : { right: false, said: `✗ You said “${guess}”; it is “${answer}”.` };
  }
  const off = Math.abs(guess - answer);
  const right = off <= tolerance;
  const verdict = right ? `✓ Right, within ${tolerance}` : off <= 2 * tolerance ? "≈ Close" : "✗ Not yet";
  return { right, said: `${verdict}: you said ${guess}, it is ${rounded(answer)}.` };
}

/** A number as it is read: four digits behind the point, of very small ones five. @param {number} value */
export function rounded(value) {
  return String(Number(value.toFixed(Math.abs(value) < 0.001 ? 5 : 4)));
}

export class Lab {
  /** @param {import("../../engine/engine.js").Engine} engine @param {import("../../engine/engine.js").About} about */
  constructor(engine, about) {
    this.engine = engine;
    this.about = about;
    /** Told how many of the runs of a reveal are done. @type {(done: number, all: number) => void} */
    this.progress = () => {};
  }

  /** @param {string} text @param {Edit[]} [edits] */
  async run(text, edits = []) {
    return new LabRun(this.engine, await this.engine.trace({ texts: [text], edits }));
  }

  /**
   * What `act` gives of each, one after the other.
   *
   * @template One, Found
   * @param {One[]} all
   * @param {(one: One) => Promise<Found>} act
   */
  async each(all, act) {
    const found = [];
    for (const one of all) {
      found.push(await act(one));
      this.progress(found.length, all.length);
    }
    return found;
  }

  /** A weight of the model, by its whole name. @param {string} name */
  async weight(name) {
    const found = await this.engine.weights(name, null, null);
    if (!found) throw new Error(`this model has no weight ${name}, which the step needs`);
    return found;
  }

  /** The ids of the words of a text that are one token each, after [CLS]. @param {string} words */
  async ids(words) {
    return (await this.run(words)).run.ids.slice(1, -1);
  }
}

/** One run, and what is read of it. */
export class LabRun {
  /** @param {import("../../engine/engine.js").Engine} engine @param {import("../../engine/engine.js").Run} run */
  constructor(engine, run) {
    this.engine = engine;
    this.run = run;
    this.words = run.header.tokens.text;
    this.length = run.ids.length;
  }

  /** @param {string} token */
  place(token) {
    const at = this.words.indexOf(token);
    if (at < 0) throw new Error(`the step's text has no token “${token}” in this model`);
    return at;
  }

  /** @param {string} quantity @param {number | null} layer */
  read(quantity, layer) {
    return this.engine.read(this.run.number, quantity, layer);
  }

  /**
   * One row of a quantity with heads: of a query, or the vector of a position.
   *
   * @param {string} quantity
   * @param {number} layer
   * @param {number} head
   * @param {number} position
   */
  async row(quantity, layer, head, position) {
    return (await headsAt(this, quantity, layer, position))[head];
  }

  /** The logits at a position. @param {number} position */
  logits(position) {
    return rowAt(this, "logits", null, position);
  }

  /** What the model says first at a position. @param {number} position */
  async first(position) {
    return (await this.engine.candidates(this.run.number, position))[0].text.trim();
  }
}
