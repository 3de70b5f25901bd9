/**
 * The arithmetic view before a model: any number of a run is chosen, and worked out from the numbers
 * and weights that it is made of. An attention weight is told by the view that every page has.
 *
 * @import { Source } from "../../core/data/source.js"
 * @import { Kind, Stage, View } from "../../core/frame/kinds.js"
 * @import { Step, Way, Worked } from "./worked.js"
 */

import { usualQuery } from "../../core/data/softmax.js";
import { cssColors } from "../../core/draw/canvas.js";
import { element } from "../../core/draw/dom.js";
import { currentHead } from "../../core/state/state.js";
import { tokenOf } from "../../marks/rows.js";
import { TokenPicker } from "./pick.js";
import { answerOf, stepOf } from "./tell.js";
import { VectorStrip } from "./vector.js";
import { softmaxStep, Teller, told, vectorAt, workedIn } from "./worked.js";
import { workedFigure } from "./worked_figure.js";

/**
 * @param {Kind} weights  the view of one attention weight
 * @returns {Kind}
 */
export function everyNumber(weights) {
  return {
    ...weights,
    title: "Any number, down to each multiplication",
    create(stage) {
      const { source } = stage.example;
      return source ? new EveryNumberView(stage, source, weights.create(stage)) : weights.create(stage);
    },
  };
}

/** @implements {View} */
class EveryNumberView {
  /**
   * @param {Stage} stage
   * @param {Source} source
   * @param {View} weights
   */
  constructor({ example, store, limits, theme }, source, weights) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.theme = theme;
    this.source = source;
    this.weights = weights;
    this.quantities = workedIn(source.shape);
    this.menu = numberMenu(this.quantities, (number) => store.set({ number, dimension: null }));
    this.picker = new TokenPicker(example.tokens, "query", "the token");
    this.picker.root.firstElementChild?.replaceChildren(element("strong", {}, ["the token"]));
    this.strip = new VectorStrip((dimension) => store.set({ dimension }));
    this.answer = element("div", { class: "sum-answer", "aria-live": "polite" });
    this.steps = element("ol", { class: "sum-steps" });
    this.content = element("div", { class: "sum-view" }, [
      this.answer,
      element("div", { class: "sum-pickers" }, [this.picker.root, this.strip.root]),
      this.steps,
    ]);
    const label = element("label", { class: "every-label" }, ["Work out ", this.menu]);
    this.root = element("div", { class: "every-view" }, [label, this.content, weights.root]);
    this.side = weights.side;
    /** @type {{title: string, steps: Step[]} | null} */
    this.told = null;
    this.content.addEventListener("click", ({ target }) => {
      const token = tokenOf(target);
      if (token) this.choose(token.index);
    });
  }

  /** @returns {Worked | null}  null: an attention weight */
  quantity() {
    const { number } = this.store.get();
    return this.quantities.find(({ id }) => id === number) ?? null;
  }

  async update() {
    const quantity = this.quantity();
    this.menu.value = quantity?.id ?? "";
    this.content.hidden = !quantity;
    this.weights.root.hidden = Boolean(quantity);
    if (!quantity) {
      await this.weights.update();
      this.root.dataset.drawn = "true";
      return;
    }
    await this.tell(quantity);
    this.root.dataset.drawn = "true";
  }

  /** @param {Worked} quantity */
  async tell(quantity) {
    const state = this.store.get();
    const { tokens } = this.example;
    const position = state.query !== null && state.query < tokens.text.length ? state.query : (this.source.predicted ?? usualQuery(tokens));
    const [layer, head] = [state.layer, currentHead(state, this.limits)];
    const at = new Teller(this.source, this.example, { layer, head, position, dimension: 0 });
    const candidates = quantity.of === "vocabulary" ? await this.source.candidates(position) : [];
    const vector = quantity.of === "vocabulary" ? null : await vectorAt(quantity, at);
    const usual = vector ? strongest(vector) : candidates[0].id;
    const dimension = state.dimension !== null && state.dimension < (vector?.length ?? this.source.shape.vocabulary) ? state.dimension : usual;
    at.place = { layer, head, position, dimension };
    const { steps, value } = await told(quantity, at);
    // Another number may have been asked for while this one was worked out.
    if (this.store.get() !== state) return;
    const given = quantity.read ? (vector?.[dimension] ?? candidates.find(({ id }) => id === dimension)?.logit ?? null) : null;
    const name = vector ? null : candidates.find(({ id }) => id === dimension)?.text ?? `token ${dimension}`;
    const go = (/** @type {Way} */ way) => this.store.set(way);
    this.answer.replaceChildren(...answerOf(quantity, { tokens, layer, head, position, dimension, name }, value, given));
    this.picker.show({ chosen: position, shade: null, masked: () => false });
    this.strip.show({ vector, candidates, dimension, theme: this.theme(), of: quantity.of });
    const all = vector ? steps : [...steps, softmaxStep(value, candidates)];
    this.told = { title: this.answer.querySelector("h2")?.textContent ?? "", steps: all };
    this.steps.replaceChildren(...all.map((step) => stepOf(step, this.theme(), go)));
  }

  /** @param {number} query */
  choose(query) {
    this.store.set({ query, anchor: "query" });
    this.picker.items.get(query)?.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    if (!this.quantity()) return this.weights.keydown?.(event) ?? false;
    const token = tokenOf(event.target);
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (!token || !by) return this.strip.keydown(event);
    this.choose(Math.max(0, Math.min(this.example.tokens.text.length - 1, token.index + by)));
    return true;
  }

  /** The picture to take away. */
  async figure() {
    if (this.quantity() && this.told) return workedFigure({ ...this.told, theme: this.theme() }, cssColors(this.root));
    if (!this.weights.figure) throw new Error("nothing is shown");
    return this.weights.figure();
  }
}

/** @param {ArrayLike<number>} vector */
function strongest(vector) {
  return Array.from(vector).reduce((best, value, i) => (Math.abs(value) > Math.abs(vector[best]) ? i : best), 0);
}

/**
 * @param {Worked[]} quantities
 * @param {(id: string) => void} choose
 */
function numberMenu(quantities, choose) {
  const made = element("select", { "aria-label": "Number", class: "every-menu" });
  const groups = [...new Set(quantities.map(({ group }) => group))];
  for (const group of groups) {
    const own = quantities.filter((one) => one.group === group);
    const options = own.map(({ id, label, says }) => element("option", { value: id }, [`${label}: ${says}`]));
    if (group === "Attention") options.splice(options.findIndex(({ value }) => value === "z"), 0, element("option", { value: "" }, ["scores and probs: one attention weight"]));
    made.append(element("optgroup", { label: group }, options));
  }
  made.addEventListener("change", () => choose(made.value));
  return made;
}
