/**
 * The script of every page: the frame, and the views of attention weights.
 *
 * In a file of its own the numbers stand in the file and the state in the file's address; cell.js
 * shows a page in a notebook.
 */

import { blocksOfText } from "./core/data/base64.js";
import { fromBase85, inflate } from "./core/data/packed.js";
import { mount } from "./core/frame/frame.js";
import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/address.js";
import { mountCell } from "./cell.js";
import { headKind } from "./views/head/head.js";
import { mapKind } from "./views/map/map.js";
import { modelKind } from "./views/model/model.js";
import { textKind } from "./views/text/text.js";

/**
 * The blocks stand behind the script, so that the page is there before its numbers are. A block is
 * whole when something stands behind it.
 *
 * @param {string} id
 */
async function arrived(id) {
  while (document.readyState === "loading" && !document.getElementById(id)?.nextElementSibling) {
    await new Promise((resolve) => setTimeout(resolve, 8));
  }
}

/** @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}

const blocks = blocksOfText((name) => arrived(name).then(() => textOf(name)));

/**
 * Marks when the first picture is there to see: drawn, and the frame that shows it begun.
 *
 * @param {HTMLElement} page
 */
async function markPainted(page) {
  const frame = () => new Promise(requestAnimationFrame);
  while (!page.querySelector("[data-drawn]")) await frame();
  await frame();
  setTimeout(() => performance.mark("minibert-painted"));
}

/**
 * @param {HTMLElement} page
 * @param {import("./core/frame/kinds.js").Kind[]} kinds
 */
export async function showPage(page, kinds) {
  const header = await inflate(fromBase85(textOf("header"))).json();
  const named = (/** @type {string} */ title) => void (document.title === title || (document.title = title));
  mount(page, header, blocks, { kinds, address: pageAddress(), keys: document, named });
  await markPainted(page);
}

handOver({ kinds: [headKind, mapKind, modelKind, textKind], showPage, mountCell });
