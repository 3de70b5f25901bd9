/** What the keys do in a view of tokens: walk along them, keep one, let go. */

import { afterClick, afterEscape, keptToken } from "./state.js";

/**
 * @typedef {import("../data/attention.js").Focus} Focus
 *
 * @typedef {object} Tokens
 * @property {Focus | null} token  the one that has the keyboard
 * @property {Focus | null} from  where the arrows begin
 * @property {(side: import("../data/attention.js").Side) => number} size  of a text
 * @property {(token: Focus) => void} focus  gives it the keyboard
 */

/**
 * @param {KeyboardEvent} event
 * @param {import("./state.js").Store} store
 * @param {Tokens} tokens
 * @returns {boolean}  whether the key meant something
 */
export function tokenKey({ key, target }, store, { token, from, size, focus }) {
  const state = store.get();
  if (key === "Escape") {
    if (!keptToken(state) && token && target instanceof HTMLElement) target.blur();
    store.set(afterEscape(state));
    return true;
  }
  if (token && (key === "Enter" || key === " ")) {
    store.set(afterClick(state, token));
    return true;
  }
  if (!from || (key !== "ArrowUp" && key !== "ArrowDown")) return false;
  const { side } = from;
  const index = from.index + (key === "ArrowUp" ? -1 : 1);
  if (index < 0 || index >= size(side)) return true;
  if (state[side] === from.index) store.set({ [side]: index });
  focus({ side, index });
  return true;
}
