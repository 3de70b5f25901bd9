/** The keys of the page. Fields that use the same keys themselves are left alone. */

import { stepLayer } from "./toolbar.js";

/**
 * @typedef {object} Listening  what the keys act on
 * @property {import("../state/state.js").Store} store
 * @property {() => import("../state/state.js").Limits} limits
 * @property {import("./kinds.js").View[]} shown
 * @property {unknown[]} examples
 * @property {(example: number) => void} open
 */

/**
 * @param {EventTarget} target
 * @param {Listening} frame
 */
export function listenToKeys(target, frame) {
  target.addEventListener("keydown", (heard) => {
    const event = /** @type {KeyboardEvent} */ (heard);
    const at = event.composedPath()[0];
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || usesKeys(at)) return;
    if (act(event, frame)) event.preventDefault();
  });
}

/** @param {EventTarget} target */
function usesKeys(target) {
  return target instanceof HTMLSelectElement || target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;
}

/**
 * @param {KeyboardEvent} event
 * @param {Listening} frame
 * @returns {boolean}  whether the key meant something here
 */
function act(event, frame) {
  if (frame.shown.some((view) => view.keydown?.(event))) return true;
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    stepLayer(frame.store, frame.limits(), event.key === "ArrowLeft" ? -1 : 1);
    return true;
  }
  const step = { n: 1, p: -1 }[event.key];
  if (!step || frame.examples.length < 2) return false;
  const next = frame.store.get().example + step;
  if (next >= 0 && next < frame.examples.length) frame.open(next);
  return true;
}
