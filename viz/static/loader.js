/**
 * The script that stands in the file as it is: it unpacks the page's style and script and puts them
 * in place. Their hashes are in the Content-Security-Policy.
 */

import { fromBase85, inflate } from "./data/packed.js";

/**
 * @param {"style" | "script"} tag
 * @param {string} text
 */
function insert(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  document.head.append(made);
}

async function start() {
  const packed = document.getElementById("code")?.textContent ?? "";
  const [style, script] = (await inflate(fromBase85(packed)).text()).split("\0");
  insert("style", style);
  insert("script", script);
}

start().catch((error) => {
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  page.textContent = `This page could not be unpacked: ${error.message}. It needs a browser of 2023 or later.`;
});
