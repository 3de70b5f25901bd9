/** The controls above the picture: layer, heads, sentence filter, threshold, special tokens. */

import { FILTERS, MINIMA, TOPS } from "../data/attention.js";
import { sharing } from "../data/sharing.js";
import { headColor, inkOn } from "../draw/colors.js";
import { button, group, menu, segments } from "../draw/controls.js";
import { element } from "../draw/dom.js";
import { currentHead } from "../state/state.js";

/**
 * @typedef {import("../state/state.js").Store} Store
 * @typedef {import("../state/state.js").Limits} Limits
 * @typedef {{root: HTMLElement, update: (theme: "light" | "dark") => void}} Control
 */

/**
 * @param {Store} store
 * @param {Limits} limits
 * @param {import("./kinds.js").Kind} kind
 * @param {import("../data/example.js").Example} example
 * @returns {Control}
 */
export function createToolbar(store, limits, kind, example) {
  const { tokens, keyTokens } = example;
  const makers = {
    layer: () => [layerControl(store, limits)],
    heads: () => [kind.oneHead ? oneHeadControl(store, limits, example) : headControl(store, limits, example)],
    filter: () => (limits.pair ? [filterControl(store)] : []),
    minimum: () => [minimumControl(store)],
    top: () => [topControl(store)],
    special: () => ([...tokens.special, ...keyTokens.special].includes(1) ? [specialControl(store)] : []),
  };
  const controls = kind.controls.flatMap((name) => makers[name]());
  const root = element("div", { class: "toolbar", role: "toolbar", "aria-label": "What is shown" });
  root.append(...controls.map((control) => control.root));
  if (controls.length > 1) root.append(unfolding(root));
  return { root, update: (theme) => controls.forEach((control) => control.update(theme)) };
}

/**
 * What shows all controls where a narrow window has room for the first only.
 *
 * @param {HTMLElement} root
 */
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

/**
 * @param {Store} store
 * @param {Limits} limits
 * @returns {Control}
 */
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
 * @param {Store} store
 * @param {Limits} limits
 * @param {import("../data/example.js").Example} example
 * @returns {Control}
 */
function headControl(store, limits, example) {
  const tiles = limits.heads.map((head) => headTile(store, limits, head));
  const all = button("all", () => store.set({ heads: limits.heads }), { class: "quiet", "aria-label": "All heads" });
  const row = tilesOf(tiles, limits.heads, example);
  const note = element("output", { class: "value" });
  return {
    root: group("Heads", [row, all, ...(limits.first === limits.heads ? [] : [note])]),
    update(theme) {
      const { heads } = store.get();
      note.textContent = `${heads.length} of ${limits.heads.length} on`;
      all.disabled = heads.length === limits.heads.length;
      tiles.forEach((tile, i) => {
        colorTile(tile, limits.heads[i], heads.includes(limits.heads[i]), theme);
      });
    },
  };
}

/**
 * The tiles where a single head is shown: a click chooses it.
 *
 * @param {Store} store
 * @param {Limits} limits
 * @param {import("../data/example.js").Example} example
 * @returns {Control}
 */
function oneHeadControl(store, limits, example) {
  const tiles = limits.heads.map((head) =>
    button(String(head), () => store.set({ heads: [head] }), { class: "tile", "aria-label": `Head ${head}` }),
  );
  return {
    root: group("Head", [tilesOf(tiles, limits.heads, example)]),
    update(theme) {
      const shown = currentHead(store.get(), limits);
      tiles.forEach((tile, i) => colorTile(tile, limits.heads[i], limits.heads[i] === shown, theme));
    },
  };
}

/**
 * The tiles in a row; those of heads that share a key-value head are joined by a bracket below.
 *
 * @param {HTMLElement[]} tiles
 * @param {number[]} heads
 * @param {import("../data/example.js").Example} example
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

/**
 * @param {HTMLElement} tile
 * @param {number} head
 * @param {boolean} on
 * @param {"light" | "dark"} theme
 */
function colorTile(tile, head, on, theme) {
  const color = headColor(head, theme);
  tile.setAttribute("aria-pressed", String(on));
  tile.style.setProperty("--head", color);
  tile.style.setProperty("--head-ink", inkOn(color));
}

/**
 * A tile: a click switches the head, a double click (or Shift) leaves it alone or brings all back.
 *
 * @param {Store} store
 * @param {Limits} limits
 * @param {number} head
 */
function headTile(store, limits, head) {
  const solo = () => {
    const { heads } = store.get();
    const alone = heads.length === 1 && heads[0] === head;
    store.set({ heads: alone ? limits.heads : [head] });
  };
  const toggle = () => {
    const on = store.get().heads;
    store.set({
      heads: limits.heads.filter((other) => on.includes(other) !== (other === head)),
    });
  };
  const tile = element("button", { type: "button", class: "tile" }, [String(head)]);
  tile.setAttribute("aria-label", `Head ${head}`);
  tile.title = `Head ${head}: click to switch, double click for this head alone`;
  tile.addEventListener("click", (event) => (event.shiftKey ? solo() : toggle()));
  tile.addEventListener("dblclick", (event) => event.shiftKey || solo());
  return tile;
}

/**
 * @param {Store} store
 * @returns {Control}
 */
function filterControl(store) {
  const choices = FILTERS.map(({ id, label }) => {
    const name = id === "all" ? "All tokens" : `From sentence ${label.replace("→", " to sentence ")}`;
    return { id, label, name };
  });
  const made = segments(choices, (filter) => store.set({ filter }));
  return { root: group("Sentences", [made.root]), update: () => made.show(store.get().filter) };
}

/**
 * @param {Store} store
 * @returns {Control}
 */
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

/**
 * @param {Store} store
 * @returns {Control}
 */
function topControl(store) {
  const options = TOPS.map((top) => /** @type {[string, string]} */ ([String(top), top ? String(top) : "all"]));
  const all = menu("Lines of each token", options, (value) => store.set({ top: Number(value) }));
  all.title = "Of each token, in each head, draw only so many of the strongest lines";
  return {
    root: group("Strongest", [element("div", { class: "stepper" }, [all])]),
    update() {
      all.value = String(store.get().top);
    },
  };
}

/**
 * @param {Store} store
 * @returns {Control}
 */
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
