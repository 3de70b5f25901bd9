/** A page of its own: the data stand in the file, the state in its address. */

import { fromBase85, inflate } from "./data/packed.js";
import { mount } from "./frame/frame.js";

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

const blocks = { text: (/** @type {string} */ name) => arrived(name).then(() => textOf(name)) };

/** @param {string} hash */
function write(hash) {
  if (hash === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  } catch {
    // Safari allows a hundred changes in half a minute; a later change writes the address.
  }
}

const address = {
  read: () => location.hash,
  write,
  listen: (/** @type {() => void} */ changed) => addEventListener("hashchange", changed),
};

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

/** @param {HTMLElement} page */
async function show(page) {
  const header = await inflate(fromBase85(textOf("header"))).json();
  const named = (/** @type {string} */ title) => void (document.title === title || (document.title = title));
  mount(page, header, blocks, { address, keys: document, named });
  await markPainted(page);
}

show(/** @type {HTMLElement} */ (document.getElementById("page")));
