/**
 * The script of a cell: it claims the place of the page, unpacks style and script, and shows the
 * page there. What the place holds without scripts stays until then, and where that fails.
 *
 * @import { Cell } from "./core/hand_over.js"
 */

import { runPacked } from "./core/hand_over.js";

/**
 * @typedef {object} Packed
 * @property {string} id  of the page; a page that is shown twice has it twice
 * @property {string} code  style and script
 */

/**
 * @param {Packed & Omit<Cell, "host" | "style" | "kinds">} cell
 * @param {HTMLOrSVGScriptElement | null} here  the script that runs
 */
function loadCell(cell, here) {
  const host = hostOf(cell.id, here);
  if (!host) return;
  // At once: what comes next looks for another place.
  const root = host.attachShadow({ mode: "open" });
  root.append(document.createElement("slot"));
  show(host, cell).catch((error) => {
    root.prepend(`This page could not be unpacked: ${error.message}. It needs a browser of 2023 or later.`);
  });
}

/** @param {HTMLElement} host @param {Packed & Omit<Cell, "host" | "style" | "kinds">} cell */
async function show(host, cell) {
  const { style, kinds, mountCell } = await runPacked(cell.code);
  mountCell({ ...cell, host, style, kinds });
}

/**
 * The place of a page that has none yet; pages with the same id are the same.
 *
 * @param {string} id
 * @param {HTMLOrSVGScriptElement | null} script
 */
function hostOf(id, script) {
  const selector = `[data-minibert="${id}"]`;
  const around = script?.closest(selector);
  // Some notebooks run the script elsewhere than where it stood.
  const all = [...(around ? [around] : []), ...document.querySelectorAll(selector)];
  const free = all.find((one) => !one.shadowRoot);
  return free instanceof HTMLElement ? free : null;
}

// document.py puts the cell in the place of this text.
loadCell(/** @type {any} */ ("{{cell}}"), document.currentScript);
