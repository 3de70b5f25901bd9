/**
 * The cards around the picture: tokens, prediction, how the next token is drawn, heads, weights of a row.
 *
 * A card has a root, and `update` shows in it what there is now.
 *
 * @import { Tokens } from "../core/data/data.js"
 * @import { About, Edit, Prediction, Sampling, Step } from "../engine/engine.js"
 * @import { Row } from "./runs.js"
 * @import { Situation } from "./workbench.js"
 */

import { signedShade } from "../core/draw/colors.js";
import { button, group, segments, walk } from "../core/draw/controls.js";
import { element, tokenChip } from "../core/draw/dom.js";
import { translated } from "../core/text/translated.js";
import { percent, tokenName, visible } from "../core/text/text.js";
import { difference } from "../marks/cards.js";
import { editAt, placeOf } from "./edits.js";
import { predictionRows } from "./runs.js";

/** Other children; the button that had the focus, or the one in its place, has it again. @param {HTMLElement} list @param {HTMLElement[]} items */
export function refill(list, items) {
  const at = [...list.querySelectorAll("button")].findIndex((one) => one === list.ownerDocument.activeElement);
  list.replaceChildren(...items);
  const there = list.querySelectorAll("button");
  if (at >= 0) there[Math.min(at, there.length - 1)]?.focus();
  return at < 0 || there.length > 0;
}

/** Walks among rows of elements; elsewhere these keys mean layers. @param {KeyboardEvent} event @param {ArrayLike<Element>[]} rows */
function walkIn(event, rows) {
  if (!walk(event, rows)) return;
  event.preventDefault();
  event.stopPropagation();
}

/** Where a change is made: at every token, or at the chosen one. @param {[string, string]} names @param {string} label @param {() => void} changed */
function createReach([all, one], label, changed) {
  const reach = { everywhere: true };
  const made = segments([{ id: "all", label: all }, { id: "one", label: one }], (id) => {
    reach.everywhere = id === "all";
    changed();
  }, label);
  return Object.assign(reach, { root: made.root, show: () => made.show(reach.everywhere ? "all" : "one") });
}

/** Takes a choice of some segments away, or gives it back. @param {HTMLElement} root @param {string} choice @param {boolean} disabled */
function disable(root, choice, disabled) {
  root.querySelector(`[data-choice="${choice}"]`)?.toggleAttribute("disabled", disabled);
}

/** A text as tokens have it: lower case, without accents, each character with its place. @param {string} text */
function folded(text) {
  const places = [];
  let plain = "";
  let at = 0;
  for (const character of text) {
    const bare = character.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
    plain += bare;
    for (let i = 0; i < bare.length; i += 1) places.push(at);
    at += character.length;
  }
  return { plain, places: [...places, at] };
}

/**
 * The characters [start, end) of each token of a text; null for special tokens and what is not found.
 *
 * @param {string} text
 * @param {Tokens} tokens
 * @param {number} segment  of a pair: 0 or 1
 * @returns {([number, number] | null)[]}
 */
export function spansOf(text, tokens, segment) {
  const { plain, places } = folded(text);
  let from = 0;
  return tokens.text.map((token, i) => {
    const wanted = folded(token.trim()).plain;
    if (tokens.special[i] || tokens.segment[i] !== segment || !wanted) return null;
    const at = plain.indexOf(wanted, from);
    if (at < 0) return null;
    from = at + wanted.length;
    return [places[at], places[from]];
  });
}

/**
 * The text with the word that a token is part of behind a mask; null where that cannot be.
 *
 * @param {string} text
 * @param {Tokens} tokens
 * @param {number} position
 * @param {string} mask
 */
export function masked(text, tokens, position, mask) {
  const spans = spansOf(text, tokens, tokens.segment[position]);
  let [first, last] = [position, position];
  while (first > 0 && tokens.piece[first]) first -= 1;
  while (tokens.piece[last + 1]) last += 1;
  const [begin, end] = [spans[first], spans[last]];
  return begin && end ? `${text.slice(0, begin[0])}${mask}${text.slice(end[1])}` : null;
}

/**
 * What changes of the texts when the word of a token is masked; null where that cannot be.
 *
 * @param {{text: string, second: string | null}} texts
 * @param {Tokens} tokens
 * @param {number} position
 * @param {string} mask
 */
export function maskedIn(texts, tokens, position, mask) {
  const name = tokens.segment[position] && texts.second ? "second" : "text";
  const text = masked(texts[name] ?? "", tokens, position, mask);
  return text === null ? null : { [name]: text };
}

/**
 * @param {string | null} maskName  null: the model has no mask
 * @param {Record<"choose" | "mask" | "hide", (position: number) => void>} acts
 */
export function createTokens(maskName, acts) {
  const row = element("div", { class: "live-tokens", role: "listbox", "aria-label": "Tokens", "aria-orientation": "horizontal" });
  let chosen = -1;
  const mask = button("Mask this word", () => acts.mask(chosen), { class: "live-act" });
  const hide = button("Hide this token", () => acts.hide(chosen), { class: "live-act" });
  const root = element("div", { class: "live-words" }, [row, element("div", { class: "live-acts" }, [...(maskName ? [mask] : []), hide])]);
  row.addEventListener("keydown", (event) => walkIn(event, [row.children]));
  let built = "";
  return {
    root,
    /** @param {Tokens} tokens @param {number | null} query  the token that is kept in the picture @param {number[]} hidden */
    update(tokens, query, hidden) {
      const wanted = JSON.stringify([tokens.text, tokens.segment]);
      if (wanted !== built) refill(row, tokens.text.map((_, i) => button(tokenChip(tokens, i, 24), () => acts.choose(i), { class: `live-token${tokens.special[i] ? " special" : ""}`, role: "option" })));
      built = wanted;
      chosen = query ?? -1;
      [...row.children].forEach((one, i) => {
        one.setAttribute("aria-selected", String(i === query));
        one.setAttribute("tabindex", i === (query ?? 0) ? "0" : "-1");
        one.classList.toggle("hidden-token", hidden.includes(i));
      });
      const none = query === null;
      hide.disabled = none;
      mask.disabled = none || Boolean(tokens.special[chosen]) || tokens.text[chosen] === maskName;
      hide.textContent = !none && hidden.includes(chosen) ? "Show this token again" : "Hide this token";
      for (const act of [mask, hide]) act.title = none ? "Choose a token first" : "";
    },
  };
}

/** Tokens of each of the two. */
const PREDICTED = 5;

/** @param {(place: number) => void} choosePlace  position of a token @param {(id: number) => void} chooseWord */
export function createPrediction(choosePlace, chooseWord) {
  const title = element("h2", {}, ["Prediction"]);
  const places = element("div", { class: "live-places" });
  const list = element("ul", { class: "live-bars" });
  const key = element("p", { class: "live-key" });
  const root = element("section", { class: "live-card live-prediction", "aria-label": "Prediction" }, [title, places, list, key]);
  return {
    root,
    /** @param {Situation} now @param {string} why  why there is none */
    update({ predictions: { before, after }, place, asked, step }, why) {
      const none = !before.length;
      key.textContent = none ? why : [after && "Pale: before. Full: with your changes.", step && "Line below: the probability to be drawn."].filter(Boolean).join(" ");
      places.replaceChildren(...(before.length > 1 ? [placesOf(before, place, choosePlace)] : []));
      if (none) return list.replaceChildren();
      const rows = predictionRows(before[place].candidates, after && (after[place]?.candidates ?? []), PREDICTED);
      const word = rows.some(({ id }) => id === asked.word) ? asked.word : rows[0].id;
      const least = [before, after].map((all) => all?.[place]?.candidates.at(-1)?.prob ?? 0);
      refill(list, rows.map((row) => barOf(row, { least, asked: row.id === word, edited: after !== null, step }, chooseWord)));
      return undefined;
    },
  };
}

/** @param {Prediction[]} all @param {number} place @param {(position: number) => void} choose */
function placesOf(all, place, choose) {
  const choices = all.map(({ position }, i) => ({ id: String(position), label: `${i + 1}`, name: `Masked word ${i + 1}` }));
  const made = segments(choices, (id) => choose(Number(id)), "Masked word");
  made.show(String(all[place].position));
  return made.root;
}

/** @param {Step | null} step @param {number} id */
function drawnOf(step, id) {
  const at = step ? step.candidates.findIndex((one) => one.id === id) : -1;
  return step && at >= 0 ? step.drawn[at] : null;
}

/**
 * @param {Row} row
 * @param {{least: number[], asked: boolean, edited: boolean, step: Step | null}} about  least: the
 *   probability of the last that is known, before and after
 * @param {(id: number) => void} choose
 */
function barOf({ id, text, before, after }, { least, asked, edited, step }, choose) {
  const drawn = drawnOf(step, id);
  const word = element("bdi", {}, [visible(text.replace(/^ /, "·"), 24)]);
  const name = button(word, () => choose(id), { class: "live-word", "aria-pressed": String(asked), title: "Ask which head matters for this" });
  const fills = [fillOf("before", before), ...(edited ? [fillOf("after", after)] : []), ...(drawn === null ? [] : [fillOf("drawn", drawn)])];
  const change = (/** @type {string} */ said) => element("span", { class: "live-change" }, [said]);
  const numbers = [numberOf("before", before, least[0])];
  if (edited) numbers.push(" → ", numberOf("after", after, least[1]), change(before !== null && after !== null ? difference(after, before) : ""));
  else if (drawn !== null) numbers.push(change(`drawn ${percent(drawn)}`));
  const track = element("span", { class: "live-track", "aria-hidden": "true" }, fills);
  const item = element("li", { class: `live-bar${edited ? " edited" : ""}${step?.chosen.id === id ? " next" : ""}` }, [name, track, element("span", { class: "live-numbers" }, numbers)]);
  item.dataset.id = String(id);
  return item;
}

/** A full track is 100 %, so that bars can be compared. @param {string} kind @param {number | null} prob */
function fillOf(kind, prob) {
  const fill = element("span", { class: `live-fill ${kind}` });
  fill.style.width = `${(prob ?? 0) * 100}%`;
  return fill;
}

/** @param {string} kind @param {number | null} prob @param {number} least  of those that are known @returns {Node | string} */
function numberOf(kind, prob, least) {
  const text = prob === null ? `<\u202f${percent(Math.max(least, 0.001))}` : percent(prob);
  return element("data", { value: prob === null ? "" : String(prob), "data-of": kind }, [text]);
}

/** @param {{sampling: (sampling: Sampling) => void, next: () => void}} acts */
export function createSampling({ sampling: change, next }) {
  let now = /** @type {Sampling | null} */ (null);
  const set = (/** @type {Partial<Sampling>} */ part) => now && change({ ...now, ...part });
  const temperature = element("input", { type: "range", min: "0", max: "2", step: "0.05", "aria-label": "Temperature" });
  const told = element("output", { class: "value" });
  const topK = number("Top-k: only so many of the most probable tokens", translated`all`, "1", "1");
  const topP = number("Top-p: only the most probable tokens that have this share", "1", "0.05", "0.05");
  topP.max = "1";
  const seed = number("Seed of the draw", "0", "0", "1");
  temperature.addEventListener("input", () => set({ temperature: Number(temperature.value) }));
  topK.addEventListener("input", () => set({ topK: wholeOf(topK.value) }));
  topP.addEventListener("input", () => {
    const share = topP.valueAsNumber;
    // An empty field is NaN, and all tokens have the share 1.
    const cuts = share > 0 && share < 1;
    set({ topP: cuts ? share : null });
  });
  seed.addEventListener("input", () => set({ seed: wholeOf(seed.value) ?? 0 }));
  const add = button("Add a token", next, { class: "live-act live-next" });
  const another = button("Another seed", () => now && set({ seed: now.seed + 1 }), { class: "live-act" });
  const said = element("p", { class: "live-key" });
  const root = element("div", { class: "live-sampling", role: "group", "aria-label": "Next token" }, [
    group("Temperature", [temperature, told]),
    group("Top-k", [topK]),
    group("Top-p", [topP]),
    group("Seed", [seed]),
    element("div", { class: "live-acts" }, [add, another]),
    said,
  ]);
  return {
    root,
    /** @param {Sampling} sampling @param {Step | null} step */
    update(sampling, step) {
      now = sampling;
      show(temperature, String(sampling.temperature));
      told.textContent = sampling.temperature === 0 ? "0: the best" : sampling.temperature.toFixed(2);
      show(topK, sampling.topK === null ? "" : String(sampling.topK));
      show(topP, sampling.topP === null ? "" : String(sampling.topP));
      show(seed, String(sampling.seed));
      add.disabled = step === null;
      const [chosen, best] = step ? [step.chosen, step.candidates[0]].map(({ text }) => `“${visible(text.replace(/^ /, "·"), 20)}”`) : ["a token", ""];
      add.textContent = `Add ${chosen}`;
      said.textContent = !step || chosen === best ? "" : `${chosen} (${percent(step.chosen.prob)}) is drawn at random, by the probabilities; the most probable is ${best}. Temperature 0 always takes that one.`;
    },
  };
}

/** @param {string} name @param {string} empty  what nothing means @param {string} min @param {string} step */
function number(name, empty, min, step) {
  return element("input", { type: "number", class: "live-number", inputmode: "decimal", min, step, placeholder: empty, "aria-label": name, title: name });
}

/** What is being typed stays as it is. @param {HTMLInputElement} field @param {string} value */
function show(field, value) {
  const same = field.value === value || (field.value !== "" && value !== "" && Number(field.value) === Number(value));
  if (!same && !(field.matches(":focus") && field.type === "number")) field.value = value;
}

/** @param {string} text */
function wholeOf(text) {
  const value = Number(text);
  return text !== "" && Number.isInteger(value) && value >= 0 ? value || null : null;
}

/** From this many heads on there is no room for numbers. */
const MANY = 9;
/** The changes of a click. */
const CLICKS = /** @type {const} */ ([
  { id: "zero", label: translated`zero`, title: "Nothing comes from it" },
  { id: "mean", label: translated`mean`, title: "The same comes from it at every token: the mean over this text" },
  { id: "text", label: translated`other`, title: "What it gives for the other prompt comes from it" },
]);

/**
 * @param {About} about
 * @param {{change: (edit: Edit) => void, to: (to: "zero" | "mean" | "text") => void, shade: (shade: "change" | "effect") => void}} acts
 */
export function createHeads({ layers, heads, predicts }, acts) {
  const to = segments([...CLICKS], acts.to, "What a click sets a head or a layer to");
  const shades = segments(
    [{ id: "change", label: "attention moved" }, { id: "effect", label: predicts === "classes" ? "matters for the class" : "matters for the word" }],
    acts.shade,
    "What the grid shows",
  );
  let shown = /** @type {Situation | null} */ (null);
  const reach = createReach(["every token", "the chosen one"], "The tokens at which a click changes it", () => shown && update(shown));
  const said = element("p", { class: "live-key" });
  const rows = Array.from({ length: layers }, (_, layer) => [
    ...Array.from({ length: heads }, (_unused, head) => cellOf("z", layer, head)), cellOf("attn_out", layer, null), cellOf("mlp_out", layer, null),
  ]);
  const table = tableOf(heads, rows);
  const position = () => (reach.everywhere ? null : (shown?.query ?? null));
  table.addEventListener("click", ({ target }) => {
    const made = target instanceof Element ? target.closest("button") : null;
    if (made && shown) acts.change(editOf(made, shown.asked.to, position()));
  });
  table.addEventListener("keydown", (event) => walkIn(event, rows));
  const labelled = (/** @type {string} */ label, /** @type {HTMLElement} */ control) => element("div", { class: "live-row" }, [element("span", { class: "live-label" }, [label]), control]);
  const root = element("section", { class: "live-card live-heads", "aria-label": "Heads and layers" }, [
    element("h2", {}, ["Heads and layers"]),
    labelled("A click sets to", to.root),
    labelled(translated`at`, reach.root),
    element("div", { class: "live-scroll" }, [table]),
    element("div", { class: "live-row" }, [shades.root]),
    said,
  ]);
  root.classList.toggle("many", heads >= MANY);
  const update = (/** @type {Situation} */ now) => {
    const { asked, place, predictions, query, shade, values } = (shown = now);
    if (query === null) reach.everywhere = true;
    to.show(asked.to);
    shades.show(shade);
    reach.show();
    disable(reach.root, "one", query === null);
    disable(to.root, "text", !asked.other);
    said.textContent = now.valuesSaid;
    const named = predictions.before[place]?.candidates ?? [];
    const word = named.find(({ id }) => id === asked.word) ?? named[0];
    const about = { ...now, word: word ? `“${visible(word.text.trim(), 16)}”` : "", most: Math.max(shade === "change" ? 0.05 : 0.1, ...(values ?? []).map(Math.abs)) };
    rows.forEach((row, layer) => row.forEach((cell, i) => paintCell(cell, about, i < heads ? (values?.[layer * heads + i] ?? null) : null, position())));
  };
  return { root, update };
}

/** The edit that a click on a cell makes. @param {HTMLElement} made @param {Edit["change"]} change @param {number | null} position  null: every token @returns {Edit} */
function editOf({ dataset: { quantity = "", layer, head } }, change, position) {
  return { quantity, change, layer: Number(layer), ...(head !== undefined && { head: Number(head) }), ...(position !== null && { position }) };
}

/** @param {string} quantity @param {number} layer @param {number | null} head */
function cellOf(quantity, layer, head) {
  const made = element("button", { type: "button", class: "live-cell", tabindex: layer === 0 && head === 0 ? "0" : "-1" });
  Object.assign(made.dataset, { quantity, layer, ...(head !== null && { head }) });
  return made;
}

/** @param {number} heads @param {HTMLElement[][]} cells  a row a layer: its heads, attention, MLP */
function tableOf(heads, cells) {
  const names = [...Array.from({ length: heads }, (_, head) => String(head)), "attn", "MLP"];
  const top = element("tr", {}, [element("td"), ...names.map((name) => element("th", { scope: "col" }, [name]))]);
  const rows = cells.map((row, layer) =>
    element("tr", {}, [element("th", { scope: "row", "aria-label": `Layer ${layer}` }, [String(layer)]), ...row.map((one) => element("td", {}, [one]))]));
  return element("table", { class: "live-grid", "aria-label": "Heads: a row a layer" }, [element("thead", {}, [top]), element("tbody", {}, rows)]);
}

/** What each cell shows. @type {WeakMap<HTMLElement, string>} */
const PAINTED = new WeakMap();

/**
 * @param {HTMLElement} made
 * @param {Situation & {word: string, most: number}} about  word: what a sweep asks about
 * @param {number | null} value
 * @param {number | null} position  null: every token
 */
function paintCell(made, { asked: { edits }, shade, word, most, theme }, value, position) {
  const { quantity = "", layer = "", head } = made.dataset;
  const own = editOf(made, "zero", position);
  const done = editAt(edits, own);
  const elsewhere = edits.some((edit) => edit !== done && placeOf({ ...edit, position: null }) === placeOf({ ...own, position: null }));
  const name = head === undefined ? `${quantity === "attn_out" ? "Attention" : "MLP"} of layer ${layer}` : `Layer ${layer}, head ${head}`;
  const number = value === null ? "" : shade === "change" ? String(Math.round(value * 100)) : plain(-value);
  const told = value === null ? "" : shade === "change" ? `: attention moved by ${number}\u202f%` : `: it adds ${number} to log p of ${word}`;
  const label = `${name}${done ? `, set to ${done.change}` : ""}${told}`;
  const background = value ? signedShade(shade === "change" ? value : -value, most, theme) : "";
  const wanted = JSON.stringify([label, elsewhere, number, background]);
  // Most cells stay as they are with each key, and each that is painted is laid out once more.
  if (PAINTED.get(made) === wanted) return;
  PAINTED.set(made, wanted);
  made.setAttribute("aria-label", label);
  made.setAttribute("aria-pressed", String(done !== undefined));
  made.classList.toggle("partly", elsewhere);
  made.title = `${name}${told}. Click to ${done ? "take the change back" : "change it"}.`;
  made.textContent = number;
  made.style.background = background;
}

/** As many digits as a cell has room for, without a sign before a zero. @param {number} value */
function plain(value) {
  const text = Math.abs(value).toFixed(Math.abs(value) < 9.995 ? 2 : 1);
  return value < 0 && Number(text) ? `−${text}` : text;
}

/**
 * @typedef {"head" | "layer" | "all"} Reach  of a cut: this head, all heads of the layer, all layers
 *
 * @typedef {object} WeightRow
 * @property {Tokens} tokens
 * @property {number} layer
 * @property {number} head
 * @property {number} query
 * @property {Float32Array} weights  of its keys
 * @property {number} first  the first key that it may look at
 * @property {number} end  the first one after it that it may not
 * @property {(key: number, reach: Reach) => boolean} cut  whether the key is hidden from it there
 * @property {number[]} set  keys whose weight is set
 *
 * @typedef {object} WeightActs
 * @property {(row: WeightRow, key: number, weight: number) => void} set
 * @property {(row: WeightRow, key: number, reach: Reach) => void} cut
 */

/** Steps of a bar: tenths of a percent. */
const STEPS = 1000;

/** @param {WeightActs} acts */
export function createWeights(acts) {
  const title = element("p", { class: "live-key" });
  const list = element("ul", { class: "live-weights" });
  /** @type {Reach} */
  let reach = "head";
  const reaches = segments([{ id: "head", label: "this head" }, { id: "layer", label: "this layer" }, { id: "all", label: "every layer" }], (id) => {
    reach = id;
    show();
  }, "Where an edge is cut");
  const root = element("div", { class: "live-panel" }, [title, list, element("div", { class: "live-row" }, [group("Cut in", [reaches.root])])]);
  let built = "";
  /** @type {{key: number, slider: HTMLInputElement, number: HTMLElement, cut: HTMLElement, item: HTMLElement}[]} */
  let items = [];
  let row = /** @type {WeightRow | null} */ (null);
  const build = (/** @type {WeightRow} */ { tokens, first, end }) => {
    items = Array.from({ length: end - first }, (_, i) => {
      const key = first + i;
      const name = tokenName(tokens, key);
      const slider = element("input", { type: "range", min: "0", max: String(STEPS), step: "1", "aria-label": `Weight of “${name}”` });
      slider.addEventListener("input", () => row && acts.set(row, key, Number(slider.value) / STEPS));
      const number = element("output", { class: "value" });
      const cut = button(translated`cut`, () => row && acts.cut(row, key, reach), { class: "live-act", "aria-label": `Cut the edge to “${name}”` });
      const item = element("li", {}, [element("span", { class: "name" }, [tokenChip(tokens, key, 18)]), slider, number, cut]);
      item.dataset.key = String(key);
      return { key, slider, number, cut, item };
    });
    list.replaceChildren(...items.map(({ item }) => item));
  };
  const show = () => {
    reaches.show(reach);
    if (!row) return;
    const now = row;
    const wanted = JSON.stringify([now.tokens.text, now.first, now.end]);
    if (wanted !== built) build(now);
    built = wanted;
    title.textContent = `Layer ${now.layer}, head ${now.head}: where “${tokenName(now.tokens, now.query)}” looks. Draw a bar: the others are scaled. Choose another token or head in the picture.`;
    items.forEach(({ key, slider, number, cut, item }) => {
      const step = String(Math.round(now.weights[key] * STEPS));
      if (slider.value !== step && !slider.matches(":active")) slider.value = step;
      number.textContent = percent(now.weights[key]);
      slider.setAttribute("aria-valuetext", `${percent(now.weights[key])}`);
      slider.style.setProperty("--part", `${now.weights[key] * 100}%`);
      const isCut = now.cut(key, reach);
      slider.disabled = isCut;
      cut.setAttribute("aria-pressed", String(isCut));
      item.classList.toggle("changed", isCut || now.set.includes(key));
    });
  };
  return {
    root,
    /** @param {WeightRow} now */
    update(now) {
      row = now;
      show();
    },
  };
}
