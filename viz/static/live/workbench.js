/**
 * What stands around the picture: fields, one sentence, the cards, changes, and what can be taken away.
 *
 * @import { Edit, Prediction } from "../engine/engine.js"
 * @import { Asked } from "./asked.js"
 */

import { button, tabsOf } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { copy } from "../core/export/export.js";
import { counted } from "../core/text/numbers.js";
import { percent, running, tokenName, visible } from "../core/text/text.js";
import { createHeads, createPrediction, createSampling, createTokens, createWeights, refill } from "./cards.js";
import { edgeOf, editInWords, placeOf } from "./edits.js";

/**
 * @param {import("../engine/engine.js").About} about
 * @param {import("../engine/engine.js").Prediction | null} before
 * @param {import("../engine/engine.js").Prediction | null} after
 * @param {{changes: number, strongest: {layer: number, head: number} | null}} more  strongest: the head without
 *   which the word is least probable
 */
export function sentenceOf({ model, predicts }, before, after, { changes, strongest }) {
  const first = before?.candidates[0];
  if (!first || !before) {
    return predicts === "masked"
      ? "Type: attention follows each key. Choose a word and mask it to see what the model would put there."
      : "Type: attention follows each key.";
  }
  const said = `“${visible(first.text.trim(), 24)}” (${percent(first.prob)})`;
  const does = {
    masked: `puts ${said} in the place of the masked word`,
    causal: `continues with ${said}`,
    classes: `says ${said} of this text`,
    none: "",
  }[predicts];
  const best = after?.candidates[0];
  if (!best) {
    const head = strongest ? `head ${strongest.head} of layer ${strongest.layer}` : "a head";
    return `${model} ${does}. Does it still say so without ${head}? Click it in the grid. Or type: everything follows.`;
  }
  const now = best.id === first.id ? `still “${visible(best.text.trim(), 24)}”, now ${percent(best.prob)}` : `“${visible(best.text.trim(), 24)}” (${percent(best.prob)})`;
  return `Without changes ${model} ${does}; with ${changes === 1 ? "your change" : `${changes} changes`} it says ${now}.`;
}

/** Said of a head whose z is changed. */
const LOOKS = " A changed head still looks where it did, so its own lines stay. Only what it passes on changes, and everything after it.";

/** @typedef {"text" | "second" | "other"} Name */

/** @type {Record<Name, {label: string, add: string, remove: string, hint: string}>} */
const FIELDS = {
  text: { label: "Text", add: "", remove: "", hint: "" },
  second: { label: "Second sentence", add: "+ second sentence", remove: "Remove the second sentence", hint: "The model reads both together" },
  other: {
    label: "Another prompt",
    add: "+ another prompt",
    remove: "Remove the other prompt",
    hint: "Shown beside the text; heads and layers can take their values from it",
  },
};

/** Characters from which on a text is written smaller. */
const LONG_TEXT = 120;

/** @param {Name} name @param {(name: Name, text: string | null) => void} typed */
function createField(name, typed) {
  const { label, add, remove, hint } = FIELDS[name];
  const field = element("textarea", { class: "live-text", rows: "1", spellcheck: "false", autocomplete: "off", "aria-label": label });
  field.title = hint;
  const take = button("×", () => typed(name, null), { class: "live-remove", "aria-label": remove, title: remove });
  const parts = name === "text" ? [field] : [element("span", { class: "label" }, [label]), field, take];
  const root = element("div", { class: `live-field ${name}` }, parts);
  const adder = button(add, () => {
    typed(name, "");
    field.focus();
  }, { class: "quiet", title: hint });
  const fit = () => {
    root.classList.toggle("long", field.value.length > LONG_TEXT);
    field.style.height = "0";
    // With its borders, which no scroll height has.
    field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
  };
  field.addEventListener("input", () => {
    // A line break is a blank to the models, and Enter would only make room.
    if (field.value.includes("\n")) field.value = field.value.replace(/\n+/g, " ");
    fit();
    typed(name, field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) event.preventDefault();
  });
  new ResizeObserver(fit).observe(root);
  return {
    name,
    root,
    adder,
    /** @param {string | null} text */
    update(text) {
      root.hidden = text === null;
      adder.hidden = text !== null;
      if (text === null || field.value === text) return;
      field.value = text;
      fit();
    },
  };
}

/** @param {{undo: () => void, redo: () => void, clear: () => void, remove: (edit: Edit) => void}} acts */
export function createChanges(acts) {
  const undo = button("↶ Undo", acts.undo, { class: "live-act", title: "Ctrl-Z" });
  const redo = button("↷ Redo", acts.redo, { class: "live-act", title: "Ctrl-Shift-Z" });
  const clear = button("Take all back", acts.clear, { class: "live-act" });
  const list = element("ul", { class: "live-changes", "aria-label": "Changes" });
  const none = element("p", { class: "live-key" }, [
    "No changes yet. Click a head in the grid, hide a token, or draw a bar under Weights; the picture then shows before and after.",
  ]);
  const root = element("div", { class: "live-panel" }, [none, list]);
  let built = "";
  return {
    root,
    steps: element("div", { class: "live-acts" }, [undo, redo, clear]),
    /** @param {Edit[]} edits @param {(position: number) => string} token @param {{back: boolean, again: boolean}} can */
    update(edits, token, can) {
      undo.disabled = !can.back;
      redo.disabled = !can.again;
      clear.disabled = !edits.length;
      none.hidden = edits.length > 0;
      const words = edits.map((edit) => editInWords(edit, token));
      if (words.join("\n") === built) return;
      built = words.join("\n");
      const kept = refill(list, edits.map((edit, i) => {
        const remove = button("×", () => acts.remove(edit), { class: "live-remove", "aria-label": `Take back: ${words[i]}` });
        const item = element("li", {}, [element("span", {}, [words[i]]), remove]);
        item.dataset.place = placeOf(edit);
        return item;
      }));
      if (!kept) undo.focus();
    },
  };
}

/** @param {() => string} address */
export function createShare(address) {
  const said = element("span", { class: "live-hint", role: "status" });
  const code = element("pre", { class: "live-python", tabindex: "0", "aria-label": "Python that gives the same numbers" });
  const copying = (/** @type {() => string} */ text, /** @type {string} */ what) => async () => {
    said.textContent = "";
    said.textContent = await copy(root, text()).then(() => `${what} copied`, (error) => `That did not work: ${error.message}`);
  };
  const acts = [
    button("Copy the Python", copying(() => code.textContent ?? "", "Python"), { class: "live-act" }),
    // In a notebook a page has no address.
    ...(location.protocol === "about:" ? [] : [button("Copy the address", copying(address, "Address"), { class: "live-act", title: "It has the texts, the changes and what is chosen" })]),
  ];
  /** @type {HTMLElement} */
  const root = element("div", { class: "live-panel live-share" }, [element("div", { class: "live-acts" }, [...acts, said]), code]);
  return {
    root,
    /** @param {string} python */
    update(python) {
      if (code.textContent !== python) code.textContent = python;
    },
  };
}

/**
 * Panels of which one is seen, and a tab for each.
 *
 * @param {string} name
 * @param {{id: string, label: string, panel: HTMLElement}[]} panels
 * @param {(id: string) => void} opened
 */
function createTabbed(name, panels, opened) {
  const { root: row, tabs, show } = tabsOf(name, panels, open, "live-");
  panels.forEach(({ id, panel }, i) => {
    Object.assign(panel, { id: `live-panel-${id}`, role: "tabpanel" });
    Object.assign(tabs[i], { id: `live-tab-${id}` });
    tabs[i].setAttribute("aria-controls", panel.id);
    panel.setAttribute("aria-labelledby", tabs[i].id);
  });
  const made = { root: element("section", { class: "live-card live-tabbed", "aria-label": name }, [row, ...panels.map(({ panel }) => panel)]), tabs, shown: "" };
  /** @param {string} id */
  function open(id) {
    made.shown = id;
    show(id);
    for (const { id: one, panel } of panels) panel.hidden = one !== id;
    opened(id);
  }
  open(panels[0].id);
  return made;
}

/**
 * @typedef {object} Ran  what came of the last run
 * @property {import("../engine/engine.js").Step | null} step
 * @property {{before: Prediction[], after: Prediction[] | null}} predictions
 *
 * @typedef {import("./runs.js").Shown & Ran} Shown
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
 * @property {(part: Partial<Asked>) => void} prefer  what is not a change of the run
 * @property {() => void} next
 * @property {(position: number) => void} choose
 * @property {(position: number) => void} mask
 * @property {(panel: string) => void} opened
 */

export class Workbench {
  /** @param {import("../engine/engine.js").About} about @param {Acts} acts @param {() => string} address */
  constructor(about, acts, address) {
    this.about = about;
    const names = /** @type {Name[]} */ (about.pairs ? ["text", "second", "other"] : ["text", "other"]);
    this.fields = names.map((name) => createField(name, acts.type));
    this.fields[0].root.append(element("div", { class: "live-adders" }, this.fields.slice(1).map(({ adder }) => adder)));
    this.tokens = createTokens(about.predicts === "masked" ? about.mask : null, {
      choose: acts.choose,
      mask: acts.mask,
      hide: (key) => acts.toggle({ quantity: "scores", change: "hide", key }),
    });
    this.sentence = element("p", { class: "live-sentence", "aria-live": "polite" });
    this.wrong = element("p", { class: "live-wrong", role: "alert" });
    this.prediction = createPrediction((place) => acts.prefer({ place }), (word) => acts.prefer({ word, shade: "effect" }));
    this.sampling = createSampling({ sampling: (sampling) => acts.prefer({ sampling }), next: acts.next });
    this.heads = createHeads(about, { change: acts.toggle, to: (to) => acts.prefer({ to }), shade: (shade) => acts.prefer({ shade }) });
    this.changes = createChanges(acts);
    this.weights = createWeights({
      set: ({ layer, head, query: position }, key, value) =>
        acts.set({ quantity: "probs", change: "set", layer, head, position, key, value }, `weight ${layer} ${head} ${position} ${key}`),
      cut: ({ layer, head, query: position }, key, reach) => acts.toggle(edgeOf({ layer, head, position }, key, reach)),
    });
    this.share = createShare(address);
    this.tabbed = createTabbed("Changes", [
      { id: "changes", label: "Changes", panel: this.changes.root },
      { id: "weights", label: "Weights", panel: this.weights.root },
      { id: "share", label: "Python", panel: this.share.root },
    ], acts.opened);
    const parts = [this.tokens.root, this.changes.steps, this.heads.root, this.tabbed.root];
    if (about.predicts === "causal") parts.unshift(this.sampling.root);
    this.bench = element("div", { class: "live-bench" }, parts);
    const sizes = `${counted(about.layers, "1 layer", " layers")} of ${counted(about.heads, "1 head", " heads")}`;
    this.root = element("header", { class: "live-top" }, [
      element("h1", {}, [`${running(about.model)}, live`, element("span", { class: "live-sizes" }, [sizes])]),
      element("div", { class: "live-fields" }, this.fields.map(({ root }) => root)),
      this.wrong,
      this.sentence,
      this.prediction.root,
    ]);
    this.wrong.hidden = true;
  }

  /** @param {unknown} error  null: nothing went wrong */
  fail(error) {
    this.wrong.hidden = error === null;
    this.wrong.textContent = error instanceof Error ? running(error.message) : "";
  }

  /** Shows the texts. @param {Asked} asked */
  type(asked) {
    for (const { name, update } of this.fields) update(asked[name]);
  }

  /** @param {Situation} now */
  update(now) {
    const { asked, before, predictions, place } = now;
    const { tokens } = before.example;
    this.type(asked);
    const hidden = asked.edits.filter((edit) => edit.quantity === "scores" && (edit.layer ?? null) === null && (edit.position ?? null) === null);
    this.tokens.update(tokens, now.query, hidden.map(({ key }) => Number(key)));
    const cut = before.example.header.cut ? `The text was cut after ${tokens.text.length} tokens, the most that this model reads. ` : "";
    // The head whose number is lowest.
    const lowest = now.shade === "effect" && now.values ? now.values.indexOf(Math.min(...now.values)) : -1;
    this.sentence.textContent = cut + sentenceOf(this.about, predictions.before[place] ?? null, predictions.after?.[place] ?? null, {
      changes: asked.edits.length,
      strongest: lowest < 0 ? null : { layer: Math.floor(lowest / this.about.heads), head: lowest % this.about.heads },
    }) + (asked.edits.some(({ quantity }) => quantity === "z") ? LOOKS : "");
    this.prediction.update(now, cut + this.why());
    this.sampling.update(asked.sampling, now.step);
    this.heads.update(now);
    this.changes.update(asked.edits, (position) => (position < tokens.text.length ? tokenName(tokens, position) : String(position)), now.can);
    this.share.update(now.python);
    this.tabbed.tabs[0].textContent = asked.edits.length ? `Changes (${asked.edits.length})` : "Changes";
  }

  /** Why there is no prediction. */
  why() {
    const { predicts, mask } = this.about;
    if (predicts === "none") return "This model has no head that predicts words.";
    return `There is no ${mask ?? "mask"} in what is read: choose a word and mask it.`;
  }
}
