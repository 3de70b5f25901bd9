/**
 * What an exercise is: questions whose numbers come from the model at hand, once a guess is made; and what plays
 * them in a live page, which it changes as its reader would.
 *
 * @import { Edit } from "../../engine/engine.js"
 */

import { button, menu } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { readExercise } from "../asked.js";
import { EXERCISES } from "./exercises.js";

/**
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

/** How often a run is asked for again that a newer one of the page pushed aside. */
const TRIES = 20;

export class Lab {
  /**
   * @param {import("../../engine/engine.js").Engine} engine
   * @param {import("../../engine/engine.js").About} about
   * @param {() => Promise<void>} rested  when the page's own run is done, which must not be pushed aside
   */
  constructor(engine, about, rested) {
    this.engine = engine;
    this.about = about;
    this.rested = rested;
  }

  /** @param {string} text @param {Edit[]} [edits] */
  async run(text, edits = []) {
    for (let tried = 1; ; tried += 1) {
      await this.rested();
      try {
        return new LabRun(this.engine, await this.engine.trace({ texts: [text], edits }));
      } catch (error) {
        if (!(error instanceof Error) || error.name !== "AbortError" || tried === TRIES) throw error;
      }
    }
  }

  /** A weight of the model, by its whole name. @param {string} name */
  async weight(name) {
    const found = await this.engine.weights(name, null, null);
    if (!found) throw new Error(`this model has no weight ${name}, which the exercise needs`);
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
    if (at < 0) throw new Error(`the exercise's text has no token “${token}” in this model`);
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
    const { shape, values } = await this.read(quantity, layer);
    const from = (head * shape[1] + position) * shape[2];
    return values.slice(from, from + shape[2]);
  }

  /** The logits at a position. @param {number} position */
  async logits(position) {
    const { shape, values } = await this.read("logits", null);
    return values.slice(position * shape[1], (position + 1) * shape[1]);
  }

  /** What the model says first at a position. @param {number} position */
  async first(position) {
    return (await this.engine.candidates(this.run.number, position))[0].text.trim();
  }
}

/**
 * @typedef {{exercise: number, step: number}} At  from 1; exercise 0: closed
 *
 * @typedef {object} Stage
 * @property {Lab} lab
 * @property {(show: Revealed["show"]) => void} show  does the change in the page
 * @property {() => void} moved  the exercise or the step is another one
 */

export class Player {
  /** @param {Exercise[]} exercises @param {Stage} stage */
  constructor(exercises, stage) {
    this.exercises = exercises;
    this.stage = stage;
    /** @type {At} */
    this.at = { exercise: 0, step: 1 };
    this.toggle = button("Exercises", () => this.go(this.at.exercise ? 0 : this.last), { class: "live-act live-exercises-open", "aria-expanded": "false", "aria-controls": "live-exercises" });
    this.last = 1;
    this.root = element("section", { class: "live-exercises", id: "live-exercises", "aria-label": "Exercises" });
    this.root.hidden = true;
  }

  /** Opens a step; 0 closes. @param {number} exercise @param {number} [step] */
  go(exercise, step = 1) {
    const chosen = this.exercises[exercise - 1];
    this.at = chosen ? { exercise, step: Math.min(Math.max(step, 1), chosen.steps.length) } : { exercise: 0, step: 1 };
    if (chosen) this.last = exercise;
    this.root.hidden = !chosen;
    this.toggle.setAttribute("aria-expanded", String(Boolean(chosen)));
    this.root.replaceChildren(...(chosen ? this.parts(chosen) : []));
    this.stage.moved();
  }

  /** @param {Exercise} chosen */
  parts(chosen) {
    const { exercise, step } = this.at;
    const names = this.exercises.map(({ title, minutes }, i) => /** @type {[string, string]} */ ([String(i + 1), `${i + 1} ${title} · ${minutes} min`]));
    const choice = menu("Exercise", names, (value) => this.go(Number(value)));
    choice.value = String(exercise);
    const head = element("div", { class: "live-row" }, [
      choice,
      element("span", { class: "live-hint" }, [`Step ${step} of ${chosen.steps.length}`]),
      button("×", () => {
        this.go(0);
        this.toggle.focus();
      }, { class: "live-remove", "aria-label": "Close the exercises" }),
    ]);
    const here = this.stage.lab.about.model;
    if (here !== chosen.model) {
      const file = `minibert live --model ${chosen.model} -o ${chosen.model}.html`;
      return [head, element("p", {}, [`This exercise is about ${chosen.model}, and the page has ${here}. Make its page with: `, element("code", {}, [file])])];
    }
    return [head, element("p", { class: "live-hint" }, [chosen.about]), this.step(chosen)];
  }

  /** @param {Exercise} chosen */
  step(chosen) {
    const { exercise, step: number } = this.at;
    const step = chosen.steps[number - 1];
    const question = element("p", { class: "live-question", id: "live-question", "aria-live": "polite" }, ["…"]);
    const result = element("div", { class: "live-result", role: "status" });
    const field = step.choices ? menu("Your guess", [["", "Choose…"], ...step.choices.map((one) => /** @type {[string, string]} */ ([one, one]))], () => {}) : element("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": "Your guess" });
    field.setAttribute("aria-describedby", "live-question");
    const commit = element("button", { type: "submit", class: "live-act" }, ["Commit the guess"]);
    const form = element("form", { class: "live-row live-guess" }, [element("span", { "aria-hidden": "true" }, ["Your guess"]), field, commit]);
    const here = () => this.at.exercise === exercise && this.at.step === number;
    const fail = (/** @type {unknown} */ error) => result.replaceChildren(`The model gave no number: ${error instanceof Error ? error.message : error}`);
    Promise.resolve(step.ask(this.stage.lab)).then((text) => question.replaceChildren(text), fail);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const guess = guessOf(step, field.value);
      if (guess === null) {
        const [low, high] = step.between ?? [-Infinity, Infinity];
        const range = Number.isFinite(low) && Number.isFinite(high) ? ` from ${low} to ${high}` : "";
        result.replaceChildren(step.choices ? "Choose one first." : `Type a number${range} first.`);
        field.focus();
        return;
      }
      field.disabled = true;
      commit.disabled = true;
      result.replaceChildren("The model is asked…");
      step.reveal(this.stage.lab).then((found) => {
        if (here()) this.reveal(step, guess, found, result);
      }).catch((error) => {
        field.disabled = commit.disabled = false;
        fail(error);
      });
    });
    return element("div", {}, [question, form, result]);
  }

  /** @param {Step} step @param {number | string} guess @param {Revealed} found @param {HTMLElement} result */
  reveal(step, guess, found, result) {
    const { right, said } = judged(step, guess, found.answer);
    const { exercise, step: number } = this.at;
    const chosen = this.exercises[exercise - 1];
    const more = number < chosen.steps.length;
    const last = exercise === this.exercises.length;
    const next = button(more ? "Next step" : last ? "Close" : "Next exercise", () => {
      this.go(more ? exercise : last ? 0 : exercise + 1, more ? number + 1 : 1);
      const field = /** @type {HTMLElement | null} */ (this.root.querySelector("form input, form select"));
      (field ?? this.toggle).focus();
    }, { class: "live-act" });
    result.dataset.numbers = JSON.stringify(found.numbers);
    result.dataset.right = String(right);
    result.replaceChildren(
      element("p", { class: "live-verdict" }, [`${right ? "✓" : "✗"} ${said}`]),
      element("p", {}, [found.said]),
      element("p", {}, [found.means]),
      element("div", { class: "live-row" }, [next]),
    );
    this.stage.show(found.show);
    next.focus({ preventScroll: true });
  }
}

/**
 * @typedef {object} Page  a live page
 * @property {import("../../engine/engine.js").Engine} engine
 * @property {import("../../engine/engine.js").About} about
 * @property {import("../live.js").Around} around
 * @property {import("../asked.js").AddressBar} bar
 * @property {import("../runs.js").Runner} runner
 * @property {import("../workbench.js").Workbench} bench
 * @property {import("../../core/frame/frame.js").Frame | null} frame
 * @property {(part: Partial<import("../asked.js").Asked>) => void} change
 * @property {boolean} typed
 * @property {() => void} reveal  brings the picture into sight
 */

export class ExercisesInPage {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    const { engine, about, around, bar, bench } = page;
    const begun = readExercise(around.address.read());
    this.followed = false;
    bar.exercise = () => (this.followed ? this.player.at : begun);
    const lab = new Lab(engine, about, () => page.runner.going ?? Promise.resolve());
    this.player = new Player(EXERCISES, { lab, moved: () => bar.later(), show: (show) => this.show(show) });
    bench.root.querySelector("h1")?.after(this.player.toggle, this.player.root);
  }

  /** Opens what the address says. */
  follow() {
    this.followed = true;
    const { exercise, step } = readExercise(this.page.around.address.read());
    const { at } = this.player;
    if (exercise !== at.exercise || step !== at.step) this.player.go(exercise, step);
  }

  /** @param {Revealed["show"]} show */
  async show({ text, edits = [], view }) {
    const { page } = this;
    page.typed = false;
    page.change({ text, second: null, other: null, edits, place: null, word: null });
    await page.runner.going;
    if (view) page.frame?.store.set({ view: view.view ?? "head", layer: view.layer, heads: [view.head], query: view.query ?? null, key: null, anchor: "query" });
    await page.frame?.update();
    page.reveal();
  }
}
