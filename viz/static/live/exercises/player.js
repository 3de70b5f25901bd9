/** Plays exercises: a question, a guess, and only then the number. */

import { button, menu } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { guessOf, judged } from "./exercise.js";

/**
 * @typedef {import("./exercise.js").Exercise} Exercise
 * @typedef {import("./exercise.js").Revealed} Revealed
 * @typedef {{exercise: number, step: number}} At  from 1; exercise 0: closed
 *
 * @typedef {object} Stage
 * @property {import("./lab.js").Lab} lab
 * @property {(show: Revealed["show"]) => void} show  does the change in the page
 * @property {() => void} moved  the exercise or the step is another one
 */

export class Player {
  /**
   * @param {Exercise[]} exercises
   * @param {Stage} stage
   */
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

  /**
   * Opens a step; 0 closes.
   *
   * @param {number} exercise
   * @param {number} [step]
   */
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

  /**
   * @param {import("./exercise.js").Step} step
   * @param {number | string} guess
   * @param {Revealed} found
   * @param {HTMLElement} result
   */
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
