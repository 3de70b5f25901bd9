/**
 * The small grid of heads that is always there: a row a layer, a column a head, and for each layer
 * its attention and its MLP. A click changes one; the colours say what the changes did.
 */

import { signedShade } from "../core/draw/colors.js";
import { segments } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { percent } from "../core/text/text.js";
import { editAt, placeOf } from "./edits.js";

/**
 * @typedef {import("../engine/engine.js").Edit} Edit
 *
 * @typedef {object} Shown
 * @property {Edit[]} edits
 * @property {number | null} token  the one that is chosen
 * @property {"change" | "effect"} shade
 * @property {number[] | null} values  of the heads, layer by layer
 * @property {"zero" | "mean" | "text"} to
 * @property {boolean} other  there is another text
 * @property {string} word  the token that a sweep asks about
 * @property {string} said
 * @property {"light" | "dark"} theme
 */

/** From this many heads on there is no room for numbers. */
const MANY = 9;
/** The changes of a click. */
const CHANGES = /** @type {const} */ ([
  { id: "zero", label: "zero", title: "Nothing comes from it" },
  { id: "mean", label: "mean", title: "The same comes from it at every token: the mean over this text" },
  { id: "text", label: "other", title: "What it gives for the other prompt comes from it" },
]);

/**
 * @param {{layers: number, heads: number, predicts: import("../engine/engine.js").Predicts}} about
 * @param {{change: (edit: Edit) => void, to: (to: "zero" | "mean" | "text") => void, shade: (shade: "change" | "effect") => void}} acts
 */
export function createHeads({ layers, heads, predicts }, acts) {
  const to = segments([...CHANGES], acts.to, "What a click sets a head, a layer or a neuron to");
  const shades = segments(
    [{ id: "change", label: "attention moved" }, { id: "effect", label: `matters for the ${predicts === "classes" ? "class" : "word"}` }],
    acts.shade,
    "What the grid shows",
  );
  let everywhere = true;
  const reach = segments([{ id: "all", label: "every token" }, { id: "one", label: "the chosen one" }], (id) => {
    everywhere = id === "all";
    if (shown) update(shown);
  }, "The tokens at which a click changes it");
  const said = element("p", { class: "live-key" });
  const cells = Array.from({ length: layers }, (_, layer) => Array.from({ length: heads }, (_unused, head) => cell("z", layer, head)));
  const whole = Array.from({ length: layers }, (_, layer) => [cell("attn_out", layer, null), cell("mlp_out", layer, null)]);
  let shown = /** @type {Shown | null} */ (null);
  const table = tableOf(layers, heads, cells, whole);
  table.addEventListener("click", ({ target }) => {
    const made = target instanceof Element ? target.closest("button") : null;
    if (!made || !shown) return;
    acts.change(editOf(made, shown.to, everywhere ? null : shown.token));
  });
  table.addEventListener("keydown", (event) => walk(event, [...cells.map((row, i) => [...row, ...whole[i]])]));
  const scroll = element("div", { class: "live-scroll" }, [table]);
  const root = element("section", { class: "live-card live-heads", "aria-label": "Heads and layers" }, [
    element("h2", {}, ["Heads and layers"]),
    element("div", { class: "live-row" }, [element("span", { class: "live-label" }, ["A click sets to"]), to.root]),
    element("div", { class: "live-row" }, [element("span", { class: "live-label" }, ["at"]), reach.root]),
    scroll,
    element("div", { class: "live-row" }, [shades.root]),
    said,
  ]);
  root.classList.toggle("many", heads >= MANY);
  const update = (/** @type {Shown} */ now) => {
    shown = now;
    if (now.token === null) everywhere = true;
    to.show(now.to);
    shades.show(now.shade);
    reach.show(everywhere ? "all" : "one");
    for (const one of reach.root.children) if (/** @type {HTMLElement} */ (one).dataset.choice === "one") one.toggleAttribute("disabled", now.token === null);
    for (const one of to.root.children) if (/** @type {HTMLElement} */ (one).dataset.choice === "text") one.toggleAttribute("disabled", !now.other);
    said.textContent = now.said;
    const most = Math.max(now.shade === "change" ? 0.05 : 0.1, ...(now.values ?? []).map(Math.abs));
    cells.flat().forEach((one, i) => paintCell(one, now, now.values?.[i] ?? null, most, everywhere ? null : now.token));
    whole.flat().forEach((one) => paintCell(one, now, null, most, everywhere ? null : now.token));
  };
  return { root, update };
}

/**
 * The edit that a click on a cell makes.
 *
 * @param {HTMLElement} made
 * @param {Edit["change"]} change
 * @param {number | null} position  null: every token
 * @returns {Edit}
 */
function editOf({ dataset: { quantity = "", layer, head } }, change, position) {
  return { quantity, change, layer: Number(layer), ...(head !== undefined && { head: Number(head) }), ...(position !== null && { position }) };
}

/**
 * @param {string} quantity
 * @param {number} layer
 * @param {number | null} head
 */
function cell(quantity, layer, head) {
  const made = element("button", { type: "button", class: "live-cell", tabindex: layer === 0 && head === 0 ? "0" : "-1" });
  Object.assign(made.dataset, { quantity, layer, ...(head !== null && { head }) });
  return made;
}

/**
 * @param {number} layers
 * @param {number} heads
 * @param {HTMLElement[][]} cells
 * @param {HTMLElement[][]} whole
 */
function tableOf(layers, heads, cells, whole) {
  const names = [...Array.from({ length: heads }, (_, head) => String(head)), "attn", "MLP"];
  const top = element("tr", {}, [element("td"), ...names.map((name) => element("th", { scope: "col" }, [name]))]);
  const rows = Array.from({ length: layers }, (_, layer) => {
    const all = [...cells[layer], ...whole[layer]].map((one) => element("td", {}, [one]));
    return element("tr", {}, [element("th", { scope: "row", "aria-label": `Layer ${layer}` }, [String(layer)]), ...all]);
  });
  return element("table", { class: "live-grid", "aria-label": "Heads: a row a layer" }, [element("thead", {}, [top]), element("tbody", {}, rows)]);
}

/**
 * @param {HTMLElement} made
 * @param {Shown} shown
 * @param {number | null} value
 * @param {number} most
 * @param {number | null} position  null: every token
 */
function paintCell(made, { edits, shade, word, theme }, value, most, position) {
  const { quantity = "", layer = "", head } = made.dataset;
  const own = editOf(made, "zero", position);
  const done = editAt(edits, own);
  const elsewhere = edits.some((edit) => edit !== done && placeOf({ ...edit, position: null }) === placeOf({ ...own, position: null }));
  const name = head === undefined ? `${quantity === "attn_out" ? "Attention" : "MLP"} of layer ${layer}` : `Layer ${layer}, head ${head}`;
  const number = value === null ? "" : shade === "change" ? percent(value) : plain(value);
  const told = value === null ? "" : shade === "change" ? `: attention moved by ${number}` : `: without it log p of ${word} changes by ${number}`;
  made.setAttribute("aria-label", `${name}${done ? `, set to ${done.change}` : ""}${told}`);
  made.setAttribute("aria-pressed", String(done !== undefined));
  made.classList.toggle("partly", elsewhere);
  made.title = `${name}${told}. Click to ${done ? "take the change back" : "change it"}.`;
  made.textContent = value === null ? "" : shade === "change" ? String(Math.round(value * 100)) : number;
  made.style.background = value ? signedShade(value, most, theme) : "";
  if (value === null) delete made.dataset.value;
  else made.dataset.value = String(value);
}

/** Two digits, without a sign before a zero. @param {number} value */
function plain(value) {
  const text = Math.abs(value).toFixed(2);
  return value < 0 && Number(text) ? `−${text}` : text;
}

/**
 * Arrows go from cell to cell.
 *
 * @param {KeyboardEvent} event
 * @param {HTMLElement[][]} rows
 */
function walk(event, rows) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const row = rows.findIndex((all) => all.some((one) => one === event.target));
  if (!step || row < 0) return;
  // Elsewhere these keys mean layers.
  event.preventDefault();
  event.stopPropagation();
  const to = rows[row + step[0]]?.[rows[row].findIndex((one) => one === event.target) + step[1]];
  if (!to) return;
  /** @type {HTMLElement} */ (event.target).tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}
