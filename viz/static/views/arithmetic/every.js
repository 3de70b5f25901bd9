/**
 * The arithmetic view before a model: any number of a run is chosen, and worked out from the numbers
 * and weights that it is made of. An attention weight is told by the view that every page has.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Candidate, Source } from "../../core/data/source.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 * @import { Place, Worked } from "./worked.js"
 */
import { farthest } from "../../core/data/softmax.js";
import { scaleFor, signColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { visible } from "../../core/text/text.js";
import { numeral, predicted } from "../../marks/cards.js";
import { chooseToken, tokenMenu } from "../../marks/rows.js";
import { dimensionAt, stripOf } from "../../marks/strips.js";
import { ArithmeticView, arithmeticKind } from "./arithmetic.js";
import { named } from "./elements.js";
import { softmaxStep, Teller, vectorAt, workedIn } from "./worked.js";

/** The arithmetic view, of any number where there is a model. @type {Kind} */
export const everyNumberKind = {
  ...arithmeticKind,
  title: "Any number, down to each multiplication",
  create: (stage) => (stage.example.source ? new EveryNumberView(stage, stage.example.source) : arithmeticKind.create(stage)),
};

class EveryNumberView extends ArithmeticView {
  /** @param {Stage} stage @param {Source} source */
  constructor(stage, source) {
    super(stage);
    const { store } = stage;
    this.source = source;
    this.quantities = workedIn(source.shape);
    this.menu = numberMenu(this.quantities, (number) => store.set({ number, dimension: null }));
    this.token = tokenMenu("Token", (query) => store.set({ query, anchor: "query" }));
    this.strip = new VectorStrip((dimension) => store.set({ dimension }));
    this.ofToken = element("div", { class: "sum-menus" }, ["of the token ", this.token]);
    this.answer.after(this.strip.root);
    const label = element("label", { class: "every-label" }, [element("span", {}, ["Work out "]), this.menu]);
    this.root.prepend(element("div", { class: "every-menus" }, [label, this.ofToken, this.pair]));
  }

  /** @returns {Worked | null}  null: an attention weight */
  quantity() {
    const { number } = this.store.get();
    return this.quantities.find(({ id }) => id === number) ?? null;
  }

  async update() {
    if (this.shown === this.asking()) return this.unfold();
    const quantity = this.quantity();
    this.menu.value = quantity?.id ?? "";
    this.pair.hidden = this.because.root.hidden = Boolean(quantity);
    this.ofToken.hidden = this.strip.root.hidden = !quantity;
    if (quantity) return this.tell(quantity);
    return super.update();
  }

  /** @param {Worked} quantity */
  async tell(quantity) {
    const state = this.store.get();
    const { tokens } = this.example;
    const position = this.position();
    const { layer, head } = this.asked();
    const at = new Teller(this.source, this.example, { layer, head, position, dimension: 0 });
    const candidates = quantity.of === "vocabulary" ? await this.source.candidates(position) : [];
    const vector = quantity.of === "vocabulary" ? null : await vectorAt(quantity, at);
    const usual = vector ? farthest(vector) : candidates[0].id;
    const dimension = state.dimension !== null && state.dimension < (vector?.length ?? this.source.shape.vocabulary) ? state.dimension : usual;
    at.place = { layer, head, position, dimension };
    const steps = await quantity.tell(at);
    const { value } = steps[steps.length - 1];
    // Another number may have been asked for while this one was worked out.
    if (this.store.get() !== state) return;
    const given = quantity.read ? (vector?.[dimension] ?? candidates.find(({ id }) => id === dimension)?.logit ?? null) : null;
    const name = vector ? null : candidates.find(({ id }) => id === dimension)?.text ?? `token ${dimension}`;
    chooseToken(this.token, tokens, position);
    this.empty.textContent = "";
    this.content.hidden = false;
    this.strip.show({ vector, candidates, dimension, theme: this.theme(), of: quantity.of });
    this.show(answerOf(quantity, { tokens, layer, head, position, dimension, name }, value, given), vector ? steps : [...steps, softmaxStep(value, candidates)]);
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    return this.quantity() ? false : super.keydown(event);
  }
}

/** @param {Worked[]} quantities @param {(id: string) => void} choose */
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

/**
 * Worked numbers as elements: what it all comes to, and each step with its sum and its formulas.
 */

/** @typedef {Place & {tokens: Tokens, name: string | null}} Where  name: of a token of the vocabulary */

/** Tokens that are listed. */
const CANDIDATES = 5;

/** A part of a number that rounding in single precision cannot explain. */
const APART = 1e-3;

/**
 * @param {Worked} quantity
 * @param {Where} where
 * @param {number} value
 * @param {number | null} given  what the model has there
 */
function answerOf(quantity, { tokens, layer, head, position, dimension, name }, value, given) {
  const place = [...(quantity.layered ? [`Layer ${layer}`] : []), ...(quantity.headed ? [`head ${head}`] : []), quantity.says];
  const which = name === null ? (quantity.of === "mlp" ? `, neuron ${dimension}` : `, dimension ${dimension}`) : ` for “${visible(name.trim(), 24)}”`;
  const parts = [
    element("p", { class: "where" }, [place.join(", ")]),
    element("h2", { class: "sum-title" }, [`${quantity.label} of `, named(tokens, position), `${which}: `, numeral("answer", value)]),
  ];
  if (given !== null && Math.abs(given - value) > APART * Math.max(Math.abs(given), Math.abs(value), 0.01)) {
    const note = element("p", { class: "sum-edited" }, ["This run was changed here: the model goes on with ", numeral("given", given), ". Below is what it would have computed."]);
    parts.push(note);
  }
  return parts;
}

/**
 * All numbers of a quantity as a strip, of which one is chosen; of the logits, the most probable tokens.
 */

/**
 * @typedef {object} Shown
 * @property {Float32Array | null} vector  null: the logits
 * @property {Candidate[]} candidates
 * @property {number} dimension
 * @property {"light" | "dark"} theme
 * @property {"model" | "head" | "mlp" | "vocabulary"} of
 */

class VectorStrip {
  /** @param {(dimension: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.room = element("div", { class: "every-room" });
    this.field = element("input", { type: "number", min: "0", step: "1", class: "every-field" });
    this.field.addEventListener("change", () => this.asked());
    this.list = element("ol", { class: "every-candidates" });
    this.thing = element("strong");
    this.all = element("span");
    // The field stays where it is: it may have the keyboard.
    this.root = element("div", { class: "every-strip" }, [element("p", { class: "sum-caption" }, [this.thing, this.field, this.all]), this.room, this.list]);
    this.now = /** @type {Shown | null} */ (null);
    this.room.addEventListener("click", ({ clientX }) => {
      const at = this.now?.vector ? dimensionAt(this.room, clientX, this.now.vector.length) : -1;
      if (at >= 0) this.choose(at);
    });
  }

  asked() {
    const value = Number(this.field.value);
    if (this.field.value && Number.isInteger(value) && value >= 0 && value <= Number(this.field.max)) this.choose(value);
  }

  /** @param {Shown} now */
  show(now) {
    this.now = now;
    const { vector, of, dimension } = now;
    const thing = { model: "the dimension ", head: "the dimension ", mlp: "the neuron ", vocabulary: "the token " }[of];
    this.room.hidden = !vector;
    this.list.hidden = Boolean(vector);
    this.field.hidden = !vector;
    this.thing.textContent = thing;
    this.field.setAttribute("aria-label", thing.trim());
    if (vector) {
      this.field.max = String(vector.length - 1);
      this.field.value = String(dimension);
      this.all.textContent = ` of ${vector.length}: click one, or write its number`;
      const mark = element("span", { class: "every-mark" });
      mark.style.left = `${((dimension + 0.5) / vector.length) * 100}%`;
      this.room.replaceChildren(stripOf(vector, scaleFor(vector), now.theme), mark);
    } else {
      this.all.textContent = "of the vocabulary, the most probable first";
      this.list.replaceChildren(...now.candidates.slice(0, CANDIDATES).map((one) => this.item(one, now)));
    }
  }

  /** @param {Candidate} candidate @param {Shown} now */
  item(candidate, { dimension, theme }) {
    const { id } = candidate;
    const parts = predicted(candidate, signColor(1, theme));
    const button = element("button", { type: "button", class: "every-candidate", "aria-pressed": String(id === dimension) }, parts);
    button.addEventListener("click", () => this.choose(id));
    return element("li", {}, [button]);
  }
}
