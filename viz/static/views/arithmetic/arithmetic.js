/**
 * The arithmetic view: one weight of one head, down to each multiplication.
 *
 * Everything is computed here from query, key and value, in double precision; each number that
 * is shown has all its digits in its `value` or `data-value`.
 *
 * @import { Vectors } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Step, Way } from "./steps.js"
 * @import { Story } from "./weight.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { weightOf } from "../../core/data/attention.js";
import { pairOf, whyAbsent } from "../../core/data/softmax.js";
import { element } from "../../core/draw/dom.js";
import { keepPlace } from "../../core/state/state.js";
import { share } from "../../core/text/numbers.js";
import { numeral } from "../../marks/cards.js";
import { chooseToken, tokenMenu } from "../../marks/rows.js";
import { Because } from "./because.js";
import { named, stepOf, workedFigure } from "./elements.js";
import { weightSteps } from "./weight.js";

export class ArithmeticView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    const choose = (/** @type {{query?: number, key?: number}} */ change) => this.story && this.store.set({ query: this.story.row.query, ...change, anchor: "query" });
    this.menus = { query: tokenMenu("Token that looks (query)", (query) => choose({ query })), key: tokenMenu("Where it looks (key)", (key) => choose({ key })) };
    this.empty = element("p", { class: "empty", role: "status" });
    this.answer = element("div", { class: "sum-answer", "aria-live": "polite" });
    this.steps = element("ol", { class: "sum-steps" });
    this.pair = element("div", { class: "sum-menus" }, [this.menus.query, " looks at ", this.menus.key]);
    this.because = new Because((way) => this.follow(way), (change) => this.store.set(change));
    this.worked = element("div", {}, [this.because.root, this.steps]);
    this.content = element("div", {}, [this.pair, this.answer, this.worked]);
    this.root = element("div", { class: "sum-view" }, [this.empty, this.content]);
    this.story = /** @type {Story | null} */ (null);
    this.told = /** @type {Step[]} */ ([]);
    this.followed = false;
    this.shown = "";
  }

  /** Another number is worked out: browsers go back to this one. @param {Way} way */
  follow(way) {
    keepPlace();
    this.followed = true;
    this.store.set(way);
  }

  /** Shows steps and what they come to. @param {HTMLElement[]} answer @param {Step[]} steps */
  show(answer, steps) {
    this.answer.replaceChildren(...answer);
    this.told = steps;
    this.shown = this.asking();
    const look = { theme: this.theme(), go: (/** @type {Way} */ way) => (way.level ? this.store.set(way) : this.follow(way)) };
    this.steps.replaceChildren(...steps.map((step) => stepOf(step, look)));
    this.unfold();
    this.root.dataset.drawn = "true";
    if (this.followed) this.answer.querySelector("h2")?.scrollIntoView({ block: "nearest" });
    this.followed = false;
  }

  /** All that is asked for but the step that is open. */
  asking() {
    return JSON.stringify([{ ...this.store.get(), level: "" }, this.theme()]);
  }

  /** Opens the step that is asked for, or the first that has more than a line, and closes the others. */
  unfold() {
    const steps = /** @type {HTMLElement[]} */ ([...this.worked.querySelectorAll("[data-step]:not([hidden])")]);
    const asked = steps.find(({ dataset }) => dataset.step === this.store.get().level);
    const open = asked ?? steps.find((one) => one.matches(":has(table), .because")) ?? steps[0];
    for (const one of steps) {
      one.classList.toggle("open", one === open);
      one.querySelector(".sum-fold")?.setAttribute("aria-expanded", String(one === open));
    }
  }

  /** Shows the store's state. */
  async update() {
    if (this.shown === this.asking()) return this.unfold();
    const asked = this.asked();
    const { layer, head } = asked;
    const [vectors, elsewhere] = await Promise.all([this.example.vectors(layer, head), this.codes(layer)]);
    if (!this.stillAsked(asked)) return;
    this.empty.textContent = vectors ? "" : whyAbsent(this.example, layer, head);
    this.content.hidden = !vectors;
    this.story = null;
    this.told = [];
    this.shown = "";
    if (!vectors) return;
    const { row, key } = pairOf(this.example, vectors, this.store.get());
    const place = (this.example.heads.indexOf(head) * vectors.nQueries + row.query) * vectors.nKeys + key;
    this.story = { example: this.example, vectors, row, key };
    chooseToken(this.menus.query, this.example.tokens, row.query);
    chooseToken(this.menus.key, this.example.keyTokens, key);
    const reasons = this.because.show(this.story, { layer, head, query: row.query, key }, this.store.get().split, this.theme());
    this.show(answerOf(this.story, `Layer ${layer}, head ${head}`, elsewhere ? weightOf(elsewhere.codes[place]) : null), weightSteps(this.story, head));
    const precision = element("p", { class: "sum-precision", "data-exact": String(vectors.exact) }, [precisionOf(vectors)]);
    this.steps.querySelector(".sum-inside")?.append(precision);
    await reasons;
  }

  /** The weights after an edit, which do not follow from query and key. @param {number} layer */
  async codes(layer) {
    if (!this.example.header.edited || !this.example.entry("probs", layer)) return null;
    return this.example.layer(layer);
  }

  /** The picture to take away. */
  async figure() {
    if (!this.told.length) throw new Error("nothing is shown");
    return workedFigure(this.worked, this.answer.querySelector("h2")?.textContent ?? "", [...(this.because.root.hidden ? [] : this.because.told), ...this.told]);
  }
}

/** @param {Vectors} vectors */
function precisionOf({ exact, within }) {
  if (exact) return "Exact: query and key are here in single precision, as the model had them.";
  if (within === null) return "Rounded: query and key are here in half precision, three digits of each; all that follows is computed from these.";
  // Rounded up, since it is promised.
  const place = 10 ** (Math.floor(Math.log10(within || 1)) - 1);
  const bound = (Math.ceil(within / place) * place).toPrecision(2);
  return `Rounded: each number of query and key is within ${bound} of the model's, and the weight within 0.4\u202f%; all that follows is computed from these.`;
}

/**
 * What it all comes to.
 *
 * @param {Story} story
 * @param {string} where
 * @param {number | null} elsewhere  the weight that other pictures show, where an edit changed it
 */
function answerOf({ example, row, key }, where, elsewhere) {
  const weight = numeral("answer", row.weights[key], share(row.weights[key]));
  const parts = [
    element("p", { class: "where" }, [where]),
    element("h2", { class: "sum-title" }, [named(example.tokens, row.query), " looks at ", named(example.keyTokens, key), " with ", weight]),
  ];
  const { edited, apart } = example.header;
  if (edited) {
    const shown = elsewhere === null ? "the weights" : `${share(elsewhere)} for this pair`;
    const note = `${apart ?? "This trace was edited."} The other pictures show ${shown} as ${apart ? "the model has it" : "the edit left it"}. Here it is as query and key make it.`;
    parts.push(element("p", { class: "sum-edited" }, [note]));
  }
  return parts;
}

/** @type {Kind} */
export const arithmeticKind = {
  id: "arithmetic",
  label: "Arithmetic",
  title: "One weight, down to each multiplication",
  missing: (example) => (example.hasVectors ? "" : "This page was made without query and key"),
  oneHead: true,
  controls: ["layer", "heads"],
  create: (stage) => new ArithmeticView(stage),
};
