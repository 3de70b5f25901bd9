/**
 * What gives a picture away: as PNG, as SVG, and its numbers as CSV.
 *
 * @import { Figure } from "./figure.js"
 * @import { View } from "../frame/kinds.js"
 */

import { button } from "../draw/controls.js";
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
 * @typedef {{label: string, ending: string, title: string, file: (figure: Figure) => Promise<Blob> | Blob}} Way
 */

/** @type {Way[]} */
const WAYS = [
  { label: "PNG image", ending: "png", title: "Save the picture as pixels, two for each of the screen", file: toPng },
  { label: "SVG drawing", ending: "svg", title: "Save the picture as a drawing that stays sharp at any size", file: toSvg },
  {
    label: "CSV table",
    ending: "csv",
    title: "Save the numbers; a sign that a spreadsheet takes for a formula has an apostrophe before it",
    file: (figure) => new Blob(toCsv(figure), { type: "text/csv" }),
  },
];

/** @param {() => Shown[]} source  what is shown: a picture, or two side by side */
export function createExport(source) {
  const said = element("p", { class: "said", role: "status" });
  const opener = element("summary", { class: "opener" }, ["Save"]);
  const ways = element("div", { class: "ways", role: "group", "aria-label": "Save the picture" });
  const root = element("details", { class: "export" }, [opener, element("div", { class: "panel" }, [ways, said])]);
  const give = async (/** @type {Way} */ { ending, file }) => {
    said.textContent = "";
    try {
      const shown = source();
      const figures = await Promise.all(shown.flatMap(({ view }) => (view.figure ? [view.figure()] : [])));
      const figure = sideBySide(figures, shown.map(({ name }) => name));
      said.textContent = save(ways, `${figure.name}.${ending}`, await file(figure));
    } catch (error) {
      said.textContent = `That did not work: ${running(error instanceof Error ? error.message : String(error))}`;
    }
  };
  ways.append(...WAYS.map((way) => button(way.label, () => give(way), { title: way.title })));
  root.addEventListener("toggle", () => (said.textContent = ""));
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root.open) return;
    root.open = false;
    opener.focus();
    // The page's own Escape was not meant.
    event.stopPropagation();
  });
  addEventListener("pointerdown", (event) => {
    if (!event.composedPath().includes(root)) root.open = false;
  });
  return {
    root,
    update() {
      root.hidden = source().every(({ view }) => !view.figure);
    },
  };
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
