/**
 * Shows a page whose numbers stand in its own file.
 *
 * @import { ExampleHeader } from "../core/data/data.js"
 * @import { Kind } from "../core/frame/kinds.js"
 */

import { blocksOfText, fromBase85, inflate } from "../core/data/packed.js";
import { Example } from "../core/data/example.js";
import { Frame } from "../core/frame/frame.js";
import { pageAddress } from "../core/state/state.js";

/** The text of an element that is there. @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}

/**
 * The blocks stand behind the script, so that the page is there before its numbers are. A block is
 * whole when something stands behind it.
 *
 * @param {string} name
 */
export async function textOfBlock(name) {
  while (document.readyState === "loading" && !document.getElementById(name)?.nextElementSibling) {
    await new Promise((resolve) => setTimeout(resolve, 8));
  }
  return textOf(name);
}

/** @param {string} id */
export function unpacked(id) {
  return inflate(fromBase85(textOf(id)));
}

/** Marks when the first picture is there to see: drawn, and the frame that shows it begun. @param {HTMLElement} page */
export async function markPainted(page) {
  const frame = () => new Promise(requestAnimationFrame);
  while (!page.querySelector("[data-drawn]")) await frame();
  await frame();
  setTimeout(() => performance.mark("minibert-painted"));
}

/** @param {string} title */
export function nameWindow(title) {
  if (document.title !== title) document.title = title;
}

/** @param {HTMLElement} page @param {Kind[]} kinds */
export async function showPage(page, kinds) {
  const header = await unpacked("header").json();
  const examples = header.examples.map((/** @type {ExampleHeader} */ entry, /** @type {number} */ i) => new Example(entry, blocksOfText(textOfBlock), i));
  void new Frame(page, header, examples, { kinds, address: pageAddress(), keys: document, named: nameWindow }).update();
  await markPainted(page);
}
