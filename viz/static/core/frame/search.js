/** The search field: part of a token or of several, how often it is there, and a walk through. */

import { element } from "../draw/dom.js";
import { matchesOf } from "../text/matches.js";

/**
 * @param {import("../state/state.js").Store} store
 * @param {import("../data/example.js").Example} example
 * @param {() => void} [moved]  called after Enter has kept another token
 * @returns {{root: HTMLElement, update: () => void}}
 */
export function createSearch(store, { tokens }, moved = () => {}) {
  const field = element("input", { type: "search", class: "search-field", placeholder: "Find a token" });
  field.setAttribute("aria-label", "Find a token");
  field.setAttribute("autocomplete", "off");
  field.setAttribute("spellcheck", "false");
  const found = element("output", { class: "search-found", "aria-live": "polite" });
  const walk = (/** @type {number} */ by) => {
    const { starts } = matchesOf(tokens, store.get().find);
    if (!starts.length) return;
    store.set({ query: nextOf(starts, store.get().query, by), key: null, anchor: "query" });
    moved();
  };
  const back = arrow("‹", "Previous match", () => walk(-1));
  const on = arrow("›", "Next match", () => walk(1));
  field.addEventListener("input", () => store.set({ find: field.value }));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) walk(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") store.set({ find: "" });
    else return;
    event.preventDefault();
  });
  const root = element("div", { class: "search", role: "search" }, [field, found, back, on]);
  return {
    root,
    update() {
      const { find, query } = store.get();
      if (field.value !== find) field.value = find;
      const { starts } = matchesOf(tokens, find);
      found.textContent = find.trim() ? counted(starts, query) : "";
      root.classList.toggle("nothing", Boolean(find.trim()) && !starts.length);
      for (const button of [back, on]) button.hidden = !starts.length;
    },
  };
}

/**
 * The match that follows a token, or precedes it; from the last on to the first.
 *
 * @param {number[]} starts
 * @param {number | null} from
 * @param {number} by
 */
function nextOf(starts, from, by) {
  const last = starts.length - 1;
  if (by > 0) return starts.find((start) => start > (from ?? -1)) ?? starts[0];
  const before = starts.filter((start) => from === null || start < from);
  return before[before.length - 1] ?? starts[last];
}

/**
 * @param {number[]} starts
 * @param {number | null} query
 */
function counted(starts, query) {
  const place = query === null ? -1 : starts.indexOf(query);
  if (place >= 0) return `${place + 1} of ${starts.length}`;
  if (!starts.length) return "not found";
  return `${starts.length} match${starts.length === 1 ? "" : "es"}`;
}

/**
 * @param {string} text
 * @param {string} name
 * @param {() => void} act
 */
function arrow(text, name, act) {
  const made = element("button", { type: "button", class: "search-step", "aria-label": name, title: name }, [text]);
  made.addEventListener("click", act);
  return made;
}
