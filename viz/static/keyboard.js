/** The keys of the page. Fields that use the same keys themselves are left alone. */

import { stepLayer } from "./toolbar.js";

/**
 * @param {EventTarget} target
 * @param {{store: import("./state.js").Store, limits: () => import("./state.js").Limits, shown: import("./views.js").View[]}} frame
 */
export function listenToKeys(target, frame) {
  target.addEventListener("keydown", (heard) => {
    const event = /** @type {KeyboardEvent} */ (heard);
    const at = event.composedPath()[0];
    if (event.altKey || event.ctrlKey || event.metaKey || usesKeys(at)) return;
    if (act(event, frame)) event.preventDefault();
  });
}

/** @param {EventTarget} target */
function usesKeys(target) {
  return target instanceof HTMLSelectElement || target instanceof HTMLInputElement;
}

/**
 * @param {KeyboardEvent} event
 * @param {{store: import("./state.js").Store, limits: () => import("./state.js").Limits, shown: import("./views.js").View[]}} frame
 * @returns {boolean}  whether the key meant something here
 */
function act(event, frame) {
  if (frame.shown.some((view) => view.keydown?.(event))) return true;
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return false;
  stepLayer(frame.store, frame.limits(), event.key === "ArrowLeft" ? -1 : 1);
  return true;
}
