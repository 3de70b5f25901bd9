/**
 * The story: chapters of steps beside one picture that stays in sight. A step asks for a guess; then the model gives
 * the number, and the picture changes.
 *
 * @import { Engine } from "../../engine/engine.js"
 * @import { Kept } from "../runs.js"
 * @import { Chapter, Revealed, Scene, Step } from "./lab.js"
 */

import { once } from "../../core/data/example.js";
import { button, menu } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { Frame } from "../../core/frame/frame.js";
import { percent, visible } from "../../core/text/text.js";
import { namedExamples, Runs, sameRuns } from "../runs.js";
import { guessOf, judged, Lab } from "./lab.js";

/**
 * @typedef {object} Around  what the story stands in
 * @property {import("../../core/frame/kinds.js").Kind[]} kinds
 * @property {import("../../core/frame/frame.js").Address} address
 * @property {Record<Chapter["model"], () => Promise<Engine>>} engines
 *
 * @typedef {{lab: Lab, runs: Runs}} Opened  a model
 */

/** Milliseconds: of a reveal before its progress is shown; of rest before the step in sight is taken. */
const [PATIENCE, REST] = [300, 120];
/** Words of a prediction that are shown. */
const WORDS = 3;

/** The picture, of either model. */
class Picture {
  /** @param {HTMLElement} host @param {Around} around @param {HTMLElement} heading */
  constructor(host, around, heading) {
    this.host = host;
    this.around = around;
    this.heading = heading;
    this.words = element("div", { class: "story-words", role: "status" });
    /** @type {Frame | null} */
    this.frame = null;
    /** @type {import("../runs.js").Shown | null} */
    this.shown = null;
    /** @type {Map<string, Promise<Opened>>} */
    this.opened = new Map();
    this.count = 0;
    this.cover = () => {};
  }

  /** @param {Chapter["model"]} model */
  open(model) {
    return once(this.opened, model, async () => {
      const engine = await this.around.engines[model]();
      const about = await engine.about();
      return { lab: new Lab(engine, about), runs: new Runs(engine, about) };
    });
  }

  /** Of scenes that are asked for soon after one another the last is shown. @param {Chapter["model"]} model @param {Scene} scene @param {boolean} told  with its prediction */
  async show(model, scene, told) {
    this.count += 1;
    const own = this.count;
    this.host.setAttribute("aria-busy", "true");
    await this.draw(model, scene, told, () => own === this.count).finally(() => {
      if (own === this.count) this.host.setAttribute("aria-busy", "false");
    });
  }

  /** @param {Chapter["model"]} model @param {Scene} scene @param {boolean} told @param {() => boolean} wanted */
  async draw(model, { text, edits = [], view }, told, wanted) {
    const { runs } = await this.open(model);
    const before = await runs.of({ texts: [text], edits: [] });
    const after = edits.length ? await runs.of({ texts: [text], edits }) : null;
    if (!wanted()) return;
    runs.keep([before, after]);
    const shown = { before, after, other: null };
    const { layer = 0, head = 0, query = null, view: kind = "head" } = view ?? {};
    const state = { view: kind, layer, heads: [head], query, key: null, anchor: /** @type {const} */ ("query"), example: 0, beside: after ? 1 : null };
    const examples = namedExamples(shown);
    this.frame ??= this.begin(examples);
    if (this.shown && !sameRuns(this.shown, shown)) await this.frame.show(examples, state);
    else {
      this.frame.store.set(state);
      await this.frame.update();
    }
    this.shown = shown;
    this.tell(told ? [before, after] : [], before.run.predictions.length > 0);
    // Of two pictures in a narrow window the one that is new.
    this.frame.pictures.root.scrollLeft = this.frame.pictures.root.scrollWidth;
    // Before anything scrolls to the step.
    this.cover();
  }

  /** @param {import("../../core/data/example.js").Example[]} examples */
  begin(examples) {
    const frame = new Frame(this.host, { title: null, view: "head" }, examples, {
      kinds: this.around.kinds,
      // The address names a step, and not the picture.
      address: { read: () => "", write() {}, listen() {} },
      keys: this.host,
      named() {},
      heading: this.heading,
    });
    frame.above?.append(this.words);
    const work = /** @type {HTMLElement} */ (frame.above?.parentElement);
    this.cover = () => this.host.style.setProperty("--covered", `${work.offsetHeight}px`);
    let width = innerWidth;
    // What the picture covers is no place for a step, and a window that is turned keeps its step.
    new ResizeObserver(() => {
      this.cover();
      if (width !== innerWidth) this.host.querySelector("[data-here]")?.scrollIntoView();
      width = innerWidth;
    }).observe(work);
    return frame;
  }

  /** @param {(Kept | null)[]} runs  none: it is to be guessed @param {boolean} asked  the text asks for a word */
  tell(runs, asked) {
    const word = (/** @type {{text: string, prob: number}} */ { text, prob }) => {
      const made = element("span", { class: "story-word" }, [`${visible(text.trim(), 16)} ${percent(prob)}`]);
      made.style.setProperty("--part", `${100 * prob}%`);
      return made;
    };
    const rows = runs.flatMap((kept, i) => {
      const [first] = kept?.run.predictions ?? [];
      const name = runs[1] ? ["Before:", "After:"][i] : "It chooses:";
      return first ? [element("p", {}, [name, ...first.candidates.slice(0, WORDS).map(word)])] : [];
    });
    this.words.replaceChildren(...(asked && !rows.length ? [element("p", {}, ["The model's choice: after your guess."])] : rows));
  }
}

/** @param {number} number @param {HTMLElement[]} parts */
function stepElement(number, parts) {
  return element("article", { class: "story-step", id: `step-${number}`, "aria-label": `Step ${number}` }, [element("span", { class: "story-number" }, [`Step ${number}`]), ...parts]);
}

/** A step as it stands in the story. */
class StepInPage {
  /** @param {Chapter} chapter @param {Step} step @param {number} number  from 1, of all steps @param {Story} story */
  constructor(chapter, step, number, story) {
    this.chapter = chapter;
    this.step = step;
    this.number = number;
    this.story = story;
    /** @type {Revealed | null} */
    this.revealed = null;
    this.asked = false;
    const id = `question-${number}`;
    this.question = element("p", { class: "story-question", id }, [typeof step.ask === "string" ? step.ask : "…"]);
    this.result = element("div", { class: "story-result", role: "status" });
    const label = step.tolerance ? `Your guess, within ${step.tolerance}` : "Your guess";
    const choices = /** @type {[string, string][]} */ ((step.choices ?? []).map((one) => [one, one]));
    this.field = step.choices ? menu(label, [["", "Choose…"], ...choices], () => {}) : element("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": label });
    this.field.setAttribute("aria-describedby", id);
    this.commit = element("button", { type: "submit" }, ["Guess"]);
    const form = element("form", { class: "story-row" }, [element("span", { "aria-hidden": "true" }, [label]), this.field, this.commit]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.guess();
    });
    this.root = stepElement(number, [this.question, form, this.result]);
  }

  /** The reader is here: the question, and the picture. */
  async arrive() {
    const { chapter: { model }, step } = this;
    const drawn = this.story.picture.show(model, { ...step.scene, ...this.revealed?.show }, this.revealed !== null);
    if (typeof step.ask !== "string" && !this.asked) {
      this.asked = true;
      this.question.textContent = await step.ask((await this.story.picture.open(model)).lab);
    }
    await drawn;
  }

  async guess() {
    const { step, field } = this;
    const guess = guessOf(step, field.value);
    if (guess === null) {
      const [low, high] = step.between ?? [-Infinity, Infinity];
      const range = Number.isFinite(low) && Number.isFinite(high) ? ` from ${low} to ${high}` : "";
      this.result.textContent = step.choices ? "Choose one first." : `Type a number${range} first.`;
      field.focus();
      return;
    }
    this.story.go(this.number);
    this.story.arriving += 1;
    field.disabled = this.commit.disabled = true;
    const { lab } = await this.story.picture.open(this.chapter.model);
    const waited = this.wait(lab);
    try {
      this.revealed = await step.reveal(lab);
      waited();
      this.tell(guess, this.revealed);
      if (this.story.at !== this.number) return;
      await this.arrive();
      if (matchMedia("(max-width: 999px)").matches) this.root.scrollIntoView();
    } catch (error) {
      waited();
      field.disabled = this.commit.disabled = false;
      this.fail(error);
    } finally {
      this.story.arriving -= 1;
    }
  }

  /** @param {unknown} error */
  fail(error) {
    this.result.textContent = `The model gave no number: ${error instanceof Error ? error.message : error}`;
  }

  /** Shows how far the reveal is, where it takes a while; what is returned ends it. @param {Lab} lab */
  wait(lab) {
    const bar = element("progress", { "aria-label": "Runs of the model" });
    const said = element("span");
    this.result.replaceChildren();
    const timer = setTimeout(() => this.result.replaceChildren(element("p", { class: "story-row" }, [bar, said])), PATIENCE);
    lab.progress = (done, all) => {
      Object.assign(bar, { max: all, value: done });
      said.textContent = `${done} of ${all}`;
    };
    return () => clearTimeout(timer);
  }

  /** @param {number | string} guess @param {Revealed} found */
  tell(guess, { answer, numbers, said, means }) {
    const { right, said: verdict } = judged(this.step, guess, answer);
    this.result.dataset.numbers = JSON.stringify(numbers);
    this.result.dataset.right = String(right);
    const next = button("Next step", () => this.story.go(this.number + 1, true));
    this.result.replaceChildren(
      element("p", { class: "story-verdict" }, [verdict]),
      element("p", {}, [said, " ", means]),
      next,
    );
    next.focus({ preventScroll: true });
  }
}

/** The end, a step without a guess: a text of the reader's own. @param {number} number @param {Picture} picture */
function ownText(number, picture) {
  const field = element("input", { type: "text", autocomplete: "off", value: "The old [MASK] ran into the house.", "aria-label": "Your own text" });
  const model = menu("Which model", [["tiny-bert", "fills [MASK]"], ["tiny-gpt2", "writes on"]], () => run());
  const result = element("p", { role: "status" });
  const root = stepElement(number, [
    element("p", { class: "story-question" }, ["Type a text of your own: which word does the model choose, and where do its heads look?"]),
    element("div", { class: "story-row story-own" }, [model, field]),
    result,
  ]);
  const fail = (/** @type {unknown} */ error) => void (result.textContent = error instanceof Error ? error.message : String(error));
  const arrive = () => picture.show(/** @type {Chapter["model"]} */ (model.value), { text: field.value }, true).then(() => result.replaceChildren());
  const run = () => arrive().catch(fail);
  field.addEventListener("input", run);
  return { root, field, result, revealed: null, arrive, fail };
}

export class Story {
  /** @param {HTMLElement} host @param {Chapter[]} chapters @param {Around} around */
  constructor(host, chapters, around) {
    this.host = host;
    this.around = around;
    this.at = 0;
    /** @type {(StepInPage | ReturnType<typeof ownText>)[]} */
    this.steps = [];
    /** Whether the page scrolls to a step by itself, and how many steps prepare their picture. */
    this.led = false;
    this.arriving = 0;
    this.essay = element("div", { class: "story-essay" });
    this.picture = new Picture(host, around, this.essay);
    const told = chapters.map((chapter, i) => {
      const steps = chapter.steps.map((step, j) => new StepInPage(chapter, step, this.steps.length + j + 1, this));
      this.steps.push(...steps);
      const head = element("div", {}, [element("h2", {}, [`${i + 1} ${chapter.title}`]), element("p", {}, [chapter.about])]);
      return element("section", { "aria-label": chapter.title }, [head, ...steps.map(({ root }) => root)]);
    });
    this.previous = button("Previous", () => this.go(this.at - 1, true));
    this.next = button("Next", () => this.go(this.at + 1, true));
    this.place = element("span");
    const own = ownText(this.steps.length + 1, this.picture);
    this.steps.push(own);
    this.essay.append(
      element("h1", {}, ["How a transformer chooses a word"]),
      element("p", {}, [`${this.steps.length} steps, about 15 minutes: guess, then see what the model does. It runs in this page, and every number is computed when you ask. Keys: n next, p previous.`]),
      ...told,
      element("section", { "aria-label": "Your turn" }, [element("div", {}, [element("h2", {}, ["Your turn"])]), own.root]),
      element("nav", { class: "story-row story-nav", "aria-label": "Steps" }, [this.previous, this.place, this.next]),
    );
    // Its look, before the picture is there.
    host.classList.add("minibert", "story");
    host.replaceChildren(this.essay);
    // The picture's keys are for who is there.
    this.essay.addEventListener("keydown", (event) => event.stopPropagation());
    this.listen();
  }

  listen() {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    addEventListener("scroll", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.look(), REST);
    }, { passive: true });
    addEventListener("scrollend", () => (this.led = false));
    this.around.address.listen(() => this.follow());
    this.host.ownerDocument.addEventListener("keydown", (event) => {
      const by = { n: 1, p: -1 }[event.key];
      // No number has these letters.
      const typed = /** @type {HTMLElement} */ (event.target).matches("textarea, input[type=text]:not([inputmode])");
      if (!by || typed || event.altKey || event.ctrlKey || event.metaKey) return;
      event.stopPropagation();
      event.preventDefault();
      this.go(this.at + by, true);
    }, { capture: true });
  }

  /** The step that the address names, or the first. */
  follow() {
    const named = /(?:^#?|&)step=(\d{1,3})(?:&|$)/.exec(this.around.address.read());
    const step = Math.max(1, named ? Number(named[1]) : 1);
    // A story that begins without a step stays as it is; one that was further on goes back to the first.
    if (step !== this.at) return this.go(step, named !== null || this.at > 0);
    return Promise.resolve();
  }

  /** @param {number} wanted @param {boolean} [scroll]  to it, with the keyboard */
  async go(wanted, scroll = false) {
    const number = Math.min(Math.max(wanted, 1), this.steps.length);
    const step = this.steps[number - 1];
    const far = Math.abs(number - this.at);
    this.at = number;
    this.place.textContent = `Step ${number} of ${this.steps.length}`;
    this.previous.disabled = number === 1;
    this.next.disabled = number === this.steps.length;
    for (const one of this.steps) one.root.toggleAttribute("data-here", one === step);
    this.arriving += 1;
    if (far) await step.arrive().catch((error) => step.fail(error));
    this.arriving -= 1;
    // Another step may have been asked for meanwhile.
    if (this.at !== number) return;
    if (far) this.around.address.write(`step=${number}`);
    if (!scroll) return;
    this.led = "onscrollend" in window;
    const away = Math.abs(step.root.getBoundingClientRect().top) > 2 * innerHeight;
    const still = away || matchMedia("(prefers-reduced-motion: reduce)").matches;
    step.root.scrollIntoView({ behavior: still ? "instant" : "smooth" });
    const to = step.revealed ? step.result.querySelector("button") : step.field;
    to?.focus({ preventScroll: true });
  }

  /** Takes the step that the reader has scrolled to; not one that a button's scrolling passes. */
  look() {
    if (this.led || this.arriving) return;
    // Who works in a step may scroll a little.
    const here = this.steps[this.at - 1].root;
    const { top } = here.getBoundingClientRect();
    if (here.contains(this.host.ownerDocument.activeElement) && top >= 0 && top < innerHeight / 2) return;
    // Where a step begins that was scrolled to (scroll-margin-top), and a little below.
    const line = parseFloat(getComputedStyle(this.steps[0].root).scrollMarginTop) + 8;
    const begun = this.steps.filter(({ root }) => root.getBoundingClientRect().top <= line).length;
    if (begun && begun !== this.at) this.go(begun);
  }
}
