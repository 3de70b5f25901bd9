/**
 * The controls above the picture: layer, heads, sentence filter, threshold, special tokens.
 *
 * @import { ExampleHeader } from "../data/data.js"
 * @import { Example } from "../data/example.js"
 * @import { Kind } from "./kinds.js"
 * @import { Limits, Store } from "../state/state.js"
 */

import { FILTERS, MINIMA } from "../data/attention.js";
import { sharing } from "../data/sharing.js";
import { headColor, inkOn } from "../draw/colors.js";
import { button, group, menu, segments, tabsOf } from "../draw/controls.js";
import { element } from "../draw/dom.js";
import { currentHead } from "../state/state.js";
import { translated } from "../text/translated.js";
import { running, visible } from "../text/text.js";
import { counted } from "../text/numbers.js";

/**
 * @typedef {{root: HTMLElement, update: (theme: "light" | "dark") => void}} Control
 */

/** @param {Store} store @param {Limits} limits @param {Kind} kind @param {Example} example @returns {Control} */
export function createToolbar(store, limits, kind, example) {
  const { tokens, keyTokens } = example;
  const makers = {
    layer: () => [layerControl(store, limits)],
    heads: () => [headControl(store, limits, example, kind.oneHead)],
    filter: () => (limits.pair ? [filterControl(store)] : []),
    minimum: () => [minimumControl(store)],
    special: () => ([...tokens.special, ...keyTokens.special].includes(1) ? [specialControl(store)] : []),
  };
  const controls = kind.controls.flatMap((name) => makers[name]());
  const root = element("div", { class: "toolbar", role: "toolbar", "aria-label": "What is shown" });
  root.append(...controls.map((control) => control.root));
  if (controls.length > 1) root.append(unfolding(root));
  return { root, update: (theme) => controls.forEach((control) => control.update(theme)) };
}

/** What shows all controls where a narrow window has room for the first only. @param {HTMLElement} root */
function unfolding(root) {
  const more = button("More controls", () => unfold(!root.classList.contains("unfolded")), { class: "quiet unfold" });
  const unfold = (/** @type {boolean} */ on) => {
    root.classList.toggle("unfolded", on);
    more.setAttribute("aria-expanded", String(on));
    more.textContent = on ? "Fewer controls" : "More controls";
  };
  unfold(false);
  return more;
}

/**
 * The layer `by` steps from the present one, or the present one at either end.
 *
 * @param {Store} store
 * @param {Limits} limits
 * @param {number} by
 */
export function stepLayer(store, limits, by) {
  const layer = limits.layers[limits.layers.indexOf(store.get().layer) + by];
  if (layer !== undefined) store.set({ layer });
}

/** @param {Store} store @param {Limits} limits @returns {Control} */
function layerControl(store, limits) {
  const options = limits.layers.map((layer) => /** @type {[string, string]} */ ([String(layer), String(layer)]));
  const all = menu("Layer", options, (value) => store.set({ layer: Number(value) }));
  const back = button("‹", () => stepLayer(store, limits, -1), { class: "step", "aria-label": "Previous layer" });
  const on = button("›", () => stepLayer(store, limits, 1), { class: "step", "aria-label": "Next layer" });
  return {
    root: group("Layer", [element("div", { class: "stepper" }, [back, all, on])]),
    update() {
      const { layer } = store.get();
      all.value = String(layer);
      back.disabled = layer === limits.layers[0];
      on.disabled = layer === limits.layers[limits.layers.length - 1];
    },
  };
}

/**
 * A tile a head. Where a single head is shown a click chooses it; else it switches the head, and a double click (or
 * Shift) leaves it alone or brings all back.
 *
 * @param {Store} store
 * @param {Limits} limits
 * @param {Example} example
 * @param {boolean} one
 * @returns {Control}
 */
function headControl(store, limits, example, one) {
  const solo = (/** @type {number} */ head) => {
    const { heads } = store.get();
    store.set({ heads: heads.length === 1 && heads[0] === head ? limits.heads : [head] });
  };
  const toggle = (/** @type {number} */ head) => {
    const on = store.get().heads;
    store.set({ heads: limits.heads.filter((other) => on.includes(other) !== (other === head)) });
  };
  const tiles = limits.heads.map((head) => {
    const title = one ? `Head ${head}` : `Head ${head}: click to switch, double click for only this head`;
    const tile = element("button", { type: "button", class: "tile", "aria-label": `Head ${head}`, title }, [String(head)]);
    tile.addEventListener("click", (event) => (one ? store.set({ heads: [head] }) : event.shiftKey ? solo(head) : toggle(head)));
    tile.addEventListener("dblclick", (event) => one || event.shiftKey || solo(head));
    return tile;
  });
  const all = button(translated`all`, () => store.set({ heads: limits.heads }), { class: "quiet", "aria-label": "All heads" });
  const note = element("output", { class: "value" });
  const beside = one ? [] : [all, ...(limits.first === limits.heads ? [] : [note])];
  return {
    root: group(one ? "Head" : "Heads", [tilesOf(tiles, limits.heads, example), ...beside]),
    update(theme) {
      const heads = one ? [currentHead(store.get(), limits)] : store.get().heads;
      note.textContent = `${heads.length} of ${limits.heads.length} on`;
      all.disabled = heads.length === limits.heads.length;
      tiles.forEach((tile, i) => {
        const color = headColor(limits.heads[i], theme);
        tile.setAttribute("aria-pressed", String(heads.includes(limits.heads[i])));
        tile.style.setProperty("--head", color);
        tile.style.setProperty("--head-ink", inkOn(color));
      });
    },
  };
}

/**
 * The tiles in a row; those of heads that share a key-value head are joined by a bracket below.
 *
 * @param {HTMLElement[]} tiles
 * @param {number[]} heads
 * @param {Example} example
 */
function tilesOf(tiles, heads, example) {
  if (!sharing(example, heads[0])) return element("div", { class: "tiles" }, tiles);
  const groups = example.keyHeads.map((shared) => {
    const own = tiles.filter((_, i) => example.keyHead(heads[i]) === shared);
    const says = sharing(example, heads[tiles.indexOf(own[0])]);
    return element("span", { class: "tile-group", role: "group", "aria-label": says, title: says }, own);
  });
  return element("div", { class: "tiles" }, groups);
}

/** @param {Store} store @returns {Control} */
function filterControl(store) {
  const choices = FILTERS.map(({ id, label }) => {
    const name = id === "all" ? "All tokens" : `${label}: from sentence ${label.replace("→", " to sentence ")}`;
    return { id, label, name };
  });
  const made = segments(choices, (filter) => store.set({ filter }));
  return { root: group("Sentences", [made.root]), update: () => made.show(store.get().filter) };
}

/** @param {Store} store @returns {Control} */
function minimumControl(store) {
  const slider = element("input", {
    type: "range",
    min: "0",
    max: String(MINIMA.length - 1),
    step: "1",
    "aria-label": "Hide weights below",
  });
  const value = element("output", { class: "value" });
  slider.addEventListener("input", () => store.set({ minimum: MINIMA[Number(slider.value)] }));
  return {
    root: group("Hide weights below", [slider, value]),
    update() {
      const { minimum } = store.get();
      slider.value = String(MINIMA.indexOf(minimum));
      value.textContent = `${minimum}\u202f%`;
      slider.setAttribute("aria-valuetext", `${minimum} percent`);
    },
  };
}

/** @param {Store} store @returns {Control} */
function specialControl(store) {
  const box = element("input", { type: "checkbox", class: "switch" });
  box.addEventListener("change", () => store.set({ special: box.checked }));
  return {
    root: group("Special tokens", [element("label", {}, [box, "take part"])]),
    update() {
      box.checked = store.get().special;
    },
  };
}

/**
 * Tabs for all pictures that some text of the page has; those that the present one does not have
 * are switched off and say why.
 *
 * @param {Store} store
 * @param {Kind[]} kinds
 * @param {() => Example} example
 */
export function createTabs(store, kinds, example) {
  const { root, tabs, show } = tabsOf("Picture", kinds, (view) => store.set({ view }));
  root.hidden = kinds.length < 2;
  let seen = "";
  return {
    root,
    update() {
      const { view } = store.get();
      show(view);
      tabs.forEach((tab, i) => {
        const missing = kinds[i].missing(example());
        tab.title = missing || kinds[i].title;
        tab.setAttribute("aria-disabled", String(Boolean(missing)));
        // Where the tabs are a row that scrolls. In a frame, in which the page is laid out anyway.
        if (kinds[i].id === view && seen !== view) requestAnimationFrame(() => (root.scrollLeft = tab.offsetLeft - root.offsetLeft - (root.clientWidth - tab.offsetWidth) / 2));
      });
      seen = view;
    },
  };
}

/** Characters of a name in a menu. */
const SHORT = 60;

/** The menus of a page of several texts: the one that is shown, and one beside it. @param {Store} store @param {Example[]} examples @param {(example: number) => void} open */
export function createChooser(store, examples, open) {
  const root = element("div", { class: "chooser", role: "group", "aria-label": "Text" });
  root.hidden = examples.length < 2;
  if (root.hidden) return { root, update() {} };
  const names = namesOf(examples).map((name) => visible(name, SHORT));
  const options = names.map((name, i) => /** @type {[string, string]} */ ([String(i), `${i + 1}. ${name}`]));
  const texts = menu("Text", options, (value) => open(Number(value)));
  const back = button("‹", () => open(store.get().example - 1), step("Previous text"));
  const on = button("›", () => open(store.get().example + 1), step("Next text"));
  const count = element("span", { class: "of" }, [`of ${names.length}`]);
  const compared = menu("Compare with", [["", translated`nothing`], ...options], (value) => store.set({ beside: value === "" ? null : Number(value) }));
  root.append(
    labelled("Text", element("div", { class: "stepper" }, [back, texts, on]), count),
    labelled("Compare with", element("div", { class: "stepper" }, [compared])),
  );
  return {
    root,
    update() {
      const { example, beside } = store.get();
      texts.value = String(example);
      back.disabled = example === 0;
      on.disabled = example === names.length - 1;
      compared.value = beside === null ? "" : String(beside);
      for (const option of compared.options) option.hidden = option.value === String(example);
    },
  };
}

/** @param {string} name @param {Node[]} children */
function labelled(name, ...children) {
  const label = element("span", { class: "label", "aria-hidden": "true" }, [name]);
  return element("div", { class: "choice" }, [label, ...children]);
}

/** @param {string} name */
function step(name) {
  return { class: "step", "aria-label": name, title: name };
}

/** The name of the page, for the window. @param {{title: string | null}} header @param {Example} example */
export function titleOf(header, { header: { texts, model } }) {
  const title = header.title ?? (texts.map(running).join(" / ") || "Attention");
  return running(`${title} · attention${model ? ` in ${model}` : ""}`);
}

/**
 * What tells the texts of a page apart: their names, or their words, or their places.
 *
 * @param {Example[]} examples
 * @returns {string[]}
 */
export function namesOf(examples) {
  const own = examples.map(({ header: { name } }) => (name ? running(name) : ""));
  const words = examples.map(({ header: { texts } }) => (texts.length ? running(texts.join(" / ")) : ""));
  const named = own.map((name, i) => (name && alone(own, i) ? name : [name, words[i]].filter(Boolean).join(": ")));
  return named.map((name, i) => (name && alone(named, i) ? name : `${name || "Text"} (${i + 1})`));
}

/** What a text is called on its own. @param {Example} example */
export function ownName({ header: { name, texts }, index }) {
  return name || running(texts.join(" / ")) || String(index);
}

/** @param {string[]} all @param {number} i */
function alone(all, i) {
  return all.every((other, j) => j === i || other !== all[i]);
}

/** @param {{title: string | null}} header @param {Example[]} examples  one, or two side by side */
export function createHeading(header, examples) {
  const name = header.title ? running(header.title) : "Where each token looks";
  // Two that differ in nothing but their names, which stand above the pictures too, are told of once.
  const said = examples.map(({ header: one }) => JSON.stringify([one.texts, one.notes, sizes(one)]));
  const shown = said[0] === said[1] ? examples.slice(0, 1) : examples;
  const abouts = shown.map((example) => about(example.header, shown.length === examples.length));
  const long = examples.some((example) => example.header.texts.join("").length > 240) ? " long" : "";
  return element("header", { class: `heading${long}` }, [
    element("h1", {}, [name]),
    element("div", { class: `abouts${shown.length > 1 ? " two" : ""}` }, abouts),
  ]);
}

/** @param {ExampleHeader} header @param {boolean} named */
function about(header, named) {
  const badges = header.texts.length > 1 ? ["A", "B"] : [""];
  const texts = header.texts.map((text, i) => {
    const line = element("p", { class: "text" }, [element("bdi", {}, [running(text)])]);
    if (badges[i]) line.prepend(element("span", { class: "badge" }, [badges[i]]));
    return line;
  });
  const notes = header.notes.map((note) => element("p", { class: "note" }, [note]));
  const name = named && header.name ? [element("p", { class: "name" }, [running(header.name)])] : [];
  return element("div", { class: "about" }, [
    ...name,
    element("div", { class: "texts" }, texts),
    element("p", { class: "sizes" }, [sizes(header)]),
    ...notes,
  ]);
}

/** @param {ExampleHeader} header */
function sizes({ sizes: { n_layers: nLayers, n_heads: nHeads }, cut, tokens, key_tokens: keyTokens, model }) {
  const own = counted(tokens.text.length, "1 token", " tokens");
  const both = keyTokens ? `${own} that look at ${keyTokens.text.length}` : own;
  const length = `${cut ? "the text is cut after " : ""}${both}`;
  const parts = [`${counted(nLayers, "1 layer", " layers")} of ${counted(nHeads, "1 head", " heads")}`, length];
  if (model) parts.unshift(running(model));
  return parts.join(" · ");
}
