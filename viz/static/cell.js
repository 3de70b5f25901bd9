/**
 * A page in a cell of a notebook: in a shadow DOM, so that the styles of notebook and page do not
 * meet, as tall as what it shows up to a limit, and with its state in memory.
 *
 * @import { Cell } from "./core/hand_over.js"
 */

import { blocksOfText } from "./core/data/packed.js";
import { element } from "./core/draw/dom.js";
import { mount } from "./core/frame/frame.js";
import { NotebookDarkness } from "./cell_theme.js";

/** @param {Cell} cell */
export function mountCell({ host, height, style, header, blocks, kinds }) {
  host.style.height = `${height}px`;
  host.style.setProperty("--tallest", `${height}px`);
  const page = element("div");
  const scroller = element("div", { class: "scroller" }, [page]);
  const cell = element("div", { class: "cell" }, [scroller]);
  host.shadowRoot?.replaceChildren(element("style", {}, [style]), cell);
  let hash = header.start ?? "";
  const address = { read: () => hash, write: (/** @type {string} */ now) => void (hash = now), listen: () => {} };
  const frame = mount(page, header, blocksOfText((name) => Promise.resolve(blocks[name])), {
    kinds,
    address,
    keys: page,
    named: () => {},
    darkness: new NotebookDarkness(host),
  });
  keepKeys(host, page);
  const fit = () => void (host.style.height = `${Math.min(Math.ceil(page.getBoundingClientRect().height), height)}px`);
  new ResizeObserver(fit).observe(page);
  // Bringing a token into sight must not scroll the notebook.
  frame.reveal = () => {
    const kept = page.querySelector(".token.kept");
    if (kept) scroller.scrollTop = kept.getBoundingClientRect().top - page.getBoundingClientRect().top - height / 2;
  };
  // Pictures listen for it at the window, which scrolling in a shadow DOM does not reach.
  scroller.addEventListener("scroll", () => host.dispatchEvent(new Event("scroll")), { passive: true });
}

/**
 * Key strokes while the pointer or the focus is in the cell, heard before the notebook hears them:
 * those that mean something here do nothing there.
 *
 * @param {HTMLElement} host
 * @param {HTMLElement} page
 */
function keepKeys(host, page) {
  let pointed = false;
  host.addEventListener("pointerenter", () => (pointed = true));
  host.addEventListener("pointerleave", () => (pointed = false));
  const hear = (/** @type {KeyboardEvent} */ event) => {
    const path = event.composedPath();
    if (path.includes(host)) {
      // To Jupyter, d pressed twice in a text field of ours would mean: delete the cell.
      host.toggleAttribute("data-lm-suppress-shortcuts", isPlain(event));
    } else if (pointed && host.isConnected && isPlain(event) && !isWritten(path[0])) {
      const stroke = new KeyboardEvent("keydown", { key: event.key, shiftKey: event.shiftKey, cancelable: true });
      if (page.dispatchEvent(stroke)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  };
  addEventListener("keydown", hear, true);
}

/** @param {KeyboardEvent} event */
function isPlain({ altKey, ctrlKey, metaKey, shiftKey, key }) {
  return !(altKey || ctrlKey || metaKey || (shiftKey && key === "Enter"));
}

/** @param {EventTarget} target */
function isWritten(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, select, textarea"));
}
