/**
 * The menu that gives a picture away: as PNG, as SVG, and its numbers as CSV.
 *
 * @import { Figure } from "./figure.js"
 * @import { View } from "../frame/kinds.js"
 */

import { element } from "../draw/dom.js";
import { running } from "../text/text.js";
import { sideBySide, toCsv } from "./figure.js";
import { toPng, toSvg } from "./pens.js";

/** Milliseconds that a file stays in memory for a browser that asks before it saves. */
const KEPT = 60000;

/**
 * @typedef {object} Shown
 * @property {string} name  what tells its rows in the table of two apart
 * @property {Pick<View, "figure">} view
 *
 * @typedef {() => Shown[]} Source  what is shown: a picture, or two side by side
 *
 * @typedef {{label: string, title: string, act: (figure: Figure, menu: HTMLElement) => Promise<string> | string}} Way
 */

/** @type {Way[]} */
const WAYS = [
  {
    label: "PNG image",
    title: "Save the picture as pixels, two for each of the screen",
    act: async (figure, menu) => save(menu, `${figure.name}.png`, await toPng(figure)),
  },
  {
    label: "SVG drawing",
    title: "Save the picture as a drawing that stays sharp at any size",
    act: (figure, menu) => save(menu, `${figure.name}.svg`, toSvg(figure)),
  },
  {
    label: "CSV table",
    title: "Save the numbers; a sign that a spreadsheet takes for a formula has an apostrophe before it",
    act: (figure, menu) => save(menu, `${figure.name}.csv`, new Blob(toCsv(figure), { type: "text/csv" })),
  },
  {
    label: "Copy table",
    title: "Put the numbers, as CSV, on the clipboard",
    act: async (figure, menu) => {
      await copy(menu, toCsv(figure).join(""));
      return "Copied";
    },
  },
];

/** @param {Source} source @returns {{root: HTMLElement, update: () => void}} */
export function createExport(source) {
  const said = element("p", { class: "said", role: "status" });
  const buttons = WAYS.map(({ label }) => element("button", { type: "button", role: "menuitem", "aria-label": label }, [label]));
  const menu = element("div", { class: "ways", role: "menu", "aria-label": "Save the picture" }, buttons);
  const panel = element("div", { class: "panel" }, [menu, said]);
  const opener = element("button", { type: "button", class: "opener", "aria-haspopup": "menu", "aria-label": "Save" }, ["Save"]);
  const root = element("div", { class: "export" }, [opener, panel]);
  const open = (/** @type {boolean} */ is) => {
    panel.hidden = !is;
    opener.setAttribute("aria-expanded", String(is));
    said.textContent = "";
  };
  /** Switches the ways on, or says why there are none. */
  const update = () => {
    const none = source().every(({ view }) => view.figure) ? "" : "This view has no picture that can be saved.";
    buttons.forEach((button, i) => {
      button.disabled = none !== "";
      button.title = none || WAYS[i].title;
    });
    opener.disabled = none !== "";
    opener.title = none || "Save the picture, or its numbers";
    if (none) open(false);
  };
  buttons.forEach((button, i) => {
    button.addEventListener("click", async () => {
      said.textContent = "";
      for (const other of buttons) other.disabled = true;
      said.textContent = await outcome(() => give(source, WAYS[i], menu));
      update();
      button.focus();
    });
  });
  open(false);
  listen({ root, opener, panel, buttons, open });
  return { root, update };
}

/**
 * What opens the menu, and what closes it.
 *
 * @param {{root: HTMLElement, opener: HTMLElement, panel: HTMLElement, buttons: HTMLElement[],
 *   open: (is: boolean) => void}} parts
 */
function listen({ root, opener, panel, buttons, open }) {
  opener.addEventListener("click", () => {
    open(Boolean(panel.hidden));
    if (!panel.hidden) buttons[0].focus();
  });
  root.addEventListener("keydown", (event) => {
    if (moves(event, buttons, root)) return stop(event);
    if (event.key !== "Escape" || panel.hidden) return undefined;
    open(false);
    opener.focus();
    return stop(event);
  });
  addEventListener("pointerdown", (event) => {
    if (!panel.hidden && !event.composedPath().includes(root)) open(false);
  });
  root.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget instanceof Node && !root.contains(relatedTarget)) open(false);
  });
}

/** @param {Event} event */
function stop(event) {
  event.preventDefault();
  event.stopPropagation();
}

/**
 * Arrows go through the menu, as its role promises.
 *
 * @param {KeyboardEvent} event
 * @param {HTMLElement[]} items
 * @param {HTMLElement} root
 */
function moves({ key }, items, root) {
  const step = Number(key === "ArrowDown") - Number(key === "ArrowUp");
  const { activeElement } = /** @type {Document | ShadowRoot} */ (root.getRootNode());
  const at = items.findIndex((item) => item === activeElement);
  if (!step || at < 0) return false;
  items[(at + step + items.length) % items.length].focus();
  return true;
}

/** @param {Source} source @param {Way} way @param {HTMLElement} menu */
async function give(source, way, menu) {
  const shown = source();
  const figures = await Promise.all(shown.flatMap(({ view }) => (view.figure ? [view.figure()] : [])));
  return way.act(sideBySide(figures, shown.map(({ name }) => name)), menu);
}

/** @param {() => Promise<string>} act */
async function outcome(act) {
  try {
    return await act();
  } catch (error) {
    return `That did not work: ${running(error instanceof Error ? error.message : String(error))}`;
  }
}

/**
 * Hands a file to the browser.
 *
 * @param {HTMLElement} menu  a place in the page
 * @param {string} name
 * @param {Blob} blob
 */
export function save(menu, name, blob) {
  const href = URL.createObjectURL(blob);
  const safe = name.replace(/[^\w.-]+/g, "-");
  const link = element("a", { href, download: safe });
  link.hidden = true;
  // Some notebooks listen for clicks that reach their document, and save the file themselves.
  menu.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), KEPT);
  return `${safe} saved`;
}

/** @param {HTMLElement} menu @param {string} text */
export async function copy(menu, text) {
  // Only pages with a safe connection have this; a notebook's server in the next room has none.
  if (navigator.clipboard && (await navigator.clipboard.writeText(text).then(() => true, () => false))) return;
  const field = element("textarea", { "aria-hidden": "true" });
  field.value = text;
  menu.append(field);
  field.select();
  const worked = document.execCommand("copy");
  field.remove();
  if (!worked) throw new Error("the browser does not let this page use the clipboard");
}
