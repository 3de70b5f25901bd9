/** The keys of the page. Fields that use the same keys themselves are left alone. */

import { focusToken, tokenOf } from "./columns.js";
import { afterClick, afterEscape, keptToken } from "./state.js";
import { stepLayer } from "./toolbar.js";

/**
 * @param {import("./state.js").Store} store
 * @param {import("./state.js").Limits} limits
 * @param {import("./columns.js").Columns} columns
 */
export function listenToKeys(store, limits, columns) {
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || usesKeys(event.target)) return;
    if (act(event, store, limits, columns)) event.preventDefault();
  });
}

/** @param {EventTarget | null} target */
function usesKeys(target) {
  return target instanceof HTMLSelectElement || target instanceof HTMLInputElement;
}

/**
 * @param {KeyboardEvent} event
 * @param {import("./state.js").Store} store
 * @param {import("./state.js").Limits} limits
 * @param {import("./columns.js").Columns} columns
 * @returns {boolean}  whether the key meant something here
 */
function act({ key, target }, store, limits, columns) {
  const state = store.get();
  const token = tokenOf(target);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    stepLayer(store, limits, key === "ArrowLeft" ? -1 : 1);
    return true;
  }
  if (key === "Escape") {
    const nothingKept = keptToken(state) === null;
    if (nothingKept && token && target instanceof HTMLElement) target.blur();
    store.set(afterEscape(state));
    return true;
  }
  if (token && (key === "Enter" || key === " ")) {
    store.set(afterClick(state, token));
    return true;
  }
  const from = token ?? keptToken(state);
  if (!from || (key !== "ArrowUp" && key !== "ArrowDown")) return false;
  const index = from.index + (key === "ArrowUp" ? -1 : 1);
  if (index < 0 || index >= limits.size) return true;
  if (state[from.side] === from.index) store.set({ [from.side]: index });
  focusToken(columns, { side: from.side, index });
  return true;
}
