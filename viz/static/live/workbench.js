/** What stands above the picture: fields, tokens, prediction, heads, changes. */

import { segments } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { counted } from "../core/text/numbers.js";
import { running, tokenName, visible } from "../core/text/text.js";
import { createChanges } from "./changes.js";
import { edgeOf } from "./edits.js";
import { createFields } from "./fields.js";
import { createHeads } from "./heads.js";
import { createNeurons } from "./neurons.js";
import { createPrediction } from "./prediction.js";
import { createSampling } from "./sampling.js";
import { sentenceOf, strongestOf } from "./sentence.js";
import { createShare } from "./share.js";
import { createTabbed } from "./tabs.js";
import { createTokens } from "./tokens.js";
import { createWeights } from "./weights.js";

/**
 * @typedef {import("./asked.js").Asked} Asked
 * @typedef {import("../engine/engine.js").Edit} Edit
 *
 * @typedef {import("../engine/engine.js").Prediction} Prediction
 *
 * @typedef {object} Ran  what came of the last run
 * @property {import("../engine/engine.js").Step | null} step
 * @property {{before: Prediction[], after: Prediction[] | null}} predictions
 *
 * @typedef {import("./pictures.js").Shown & Ran} Shown
 *
 * @typedef {object} Wished
 * @property {Asked} asked
 * @property {number} place  index of the prediction that is shown
 * @property {number[] | null} values  of the heads, in the grid
 * @property {string} valuesSaid
 * @property {"change" | "effect"} shade  what the grid shows
 * @property {number | null} query
 * @property {"light" | "dark"} theme
 * @property {{back: boolean, again: boolean}} can
 * @property {string} python
 *
 * @typedef {Shown & Wished} Situation  all that the panels show
 *
 * @typedef {object} Acts  what the reader can do
 * @property {(name: "text" | "second" | "other", text: string | null) => void} type
 * @property {(edit: Edit) => void} toggle
 * @property {(edit: Edit, kind: string) => void} set
 * @property {(edit: Edit) => void} remove
 * @property {() => void} clear
 * @property {() => void} undo
 * @property {() => void} redo
 * @property {(part: Partial<Asked>) => void} prefer  what is no change of the run
 * @property {() => void} next
 * @property {(position: number) => void} choose
 * @property {(position: number) => void} mask
 * @property {(layer: number) => void} layer
 * @property {(panel: string) => void} opened
 */

export class Workbench {
  /**
   * @param {import("../engine/engine.js").About} about
   * @param {Acts} acts
   * @param {Parameters<typeof createShare>[0]} give
   */
  constructor(about, acts, give) {
    this.about = about;
    this.toggle = acts.toggle;
    this.fields = createFields(about.pairs, acts.type);
    this.tokens = createTokens(about.predicts === "masked" ? about.mask : null, {
      choose: acts.choose,
      mask: acts.mask,
      hide: (key) => acts.toggle({ quantity: "scores", change: "hide", key }),
    });
    this.sentence = element("p", { class: "live-sentence", "aria-live": "polite" });
    this.wrong = element("p", { class: "live-wrong", role: "alert" });
    this.prediction = createPrediction((place) => acts.prefer({ place }), (word) => acts.prefer({ word, shade: "effect" }));
    this.sampling = createSampling({ sampling: (sampling) => acts.prefer({ sampling }), next: acts.next });
    if (about.predicts === "causal") this.prediction.root.append(this.sampling.root);
    this.heads = createHeads(about, { change: acts.toggle, to: (to) => acts.prefer({ to }), shade: (shade) => acts.prefer({ shade }) });
    this.changes = createChanges(acts);
    this.weights = createWeights({
      set: ({ layer, head, query: position }, key, value) =>
        acts.set({ quantity: "probs", change: "set", layer, head, position, key, value }, `weight ${layer} ${head} ${position} ${key}`),
      cut: ({ layer, head, query: position }, key, reach) => acts.toggle(edgeOf({ layer, head, position }, key, reach)),
    });
    this.neurons = createNeurons(about.layers, about.dMlp, {
      layer: acts.layer,
      change: (layer, neuron, position) => acts.toggle({ quantity: "mlp_post", change: this.to, layer, neuron, ...(position !== null && { position }) }),
    });
    this.share = createShare(give);
    /** @type {Asked["to"]} */
    this.to = "zero";
    this.tabbed = createTabbed("Changes", [
      { id: "changes", label: "Changes", panel: this.changes.root },
      { id: "weights", label: "Weights", panel: this.weights.root },
      { id: "neurons", label: "Neurons", panel: this.neurons.root },
      { id: "share", label: "Python", panel: this.share.root },
    ], acts.opened);
    this.bench = element("div", { class: "live-bench" }, [this.prediction.root, this.heads.root, this.tabbed.root]);
    this.bench.prepend(this.switcher());
    const sizes = `${counted(about.layers, "layer")} of ${counted(about.heads, "head")}`;
    this.root = element("header", { class: "live-top" }, [
      element("h1", {}, [`${running(about.model)}, live`, element("span", { class: "live-sizes" }, [sizes])]),
      this.fields.root,
      this.wrong,
      this.sentence,
      element("div", { class: "live-between" }, [this.tokens.root, this.changes.steps]),
      this.bench,
    ]);
    this.wrong.hidden = true;
  }

  /** Where there is no room for both: the grid of heads, or the changes. */
  switcher() {
    const choose = (/** @type {string} */ id) => {
      this.bench.dataset.card = id;
      made.show(id);
    };
    const made = segments([{ id: "heads", label: "Heads and layers" }, { id: "changes", label: "Changes" }], choose, "Card", "live-switch");
    choose("heads");
    return made.root;
  }

  /** As a click in the grid does. @param {number} layer @param {number} head */
  changeHead(layer, head) {
    this.toggle({ quantity: "z", change: this.to, layer, head });
  }

  /** @param {unknown} error  null: nothing went wrong */
  fail(error) {
    this.wrong.hidden = error === null;
    this.wrong.textContent = error instanceof Error ? running(error.message) : "";
  }

  /** @param {Situation} now */
  update(now) {
    const { asked, before, predictions, place, theme } = now;
    const { tokens } = before.example;
    this.to = asked.to;
    this.fields.update(asked);
    const hidden = asked.edits.filter((edit) => edit.quantity === "scores" && (edit.layer ?? null) === null && (edit.position ?? null) === null);
    this.tokens.update(tokens, now.query, hidden.map(({ key }) => Number(key)));
    const cut = before.example.header.cut ? `The text was cut after ${tokens.text.length} tokens, the most that this model reads. ` : "";
    this.sentence.textContent = cut + sentenceOf(this.about, predictions.before[place] ?? null, predictions.after?.[place] ?? null, {
      changes: asked.edits.length,
      strongest: now.shade === "effect" && now.values ? strongestOf(now.values, this.about.heads) : null,
    });
    this.prediction.update({ ...predictions, place, word: asked.word, step: now.step, why: cut + this.why() });
    this.sampling.update(asked.sampling, now.step);
    const named = predictions.before[place]?.candidates ?? [];
    const word = named.find(({ id }) => id === asked.word) ?? named[0];
    this.heads.update({
      edits: asked.edits,
      token: now.query,
      shade: now.shade,
      values: now.values,
      to: asked.to,
      other: Boolean(asked.other),
      word: word ? `“${visible(word.text.trim(), 16)}”` : "",
      said: now.valuesSaid,
      theme,
    });
    this.changes.update(asked.edits, (position) => (position < tokens.text.length ? tokenName(tokens, position) : String(position)), now.can);
    this.share.update(now.python);
    this.tabbed.tabs[0].textContent = asked.edits.length ? `Changes (${asked.edits.length})` : "Changes";
  }

  /** Why there is no prediction. */
  why() {
    const { predicts, mask } = this.about;
    if (predicts === "none") return "This model has no head that predicts words.";
    return `There is no ${mask ?? "mask"} in what is read: choose a word above and mask it.`;
  }
}
