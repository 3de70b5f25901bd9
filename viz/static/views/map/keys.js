/** The keys of the map: zoom, move, and go from cell to cell. */

import { afterEscape } from "../../core/state/state.js";
import { holding, isWhole, moved } from "../../core/state/window.js";

/** A step of the keyboard, and the part of the window that an arrow moves by. */
const ZOOM = 0.7;
const PART = 0.2;
/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {import("./map.js").MapView} map
 * @param {string} key
 * @returns {boolean}  whether the key meant something
 */
export function mapKey(map, key) {
  const { store } = map;
  if (key === "+" || key === "=") map.zoomBy(ZOOM);
  else if (key === "-" || key === "_") map.zoomBy(1 / ZOOM);
  else if (key === "0") map.see(null);
  else if (key === "Escape") store.set(afterEscape(store.get()));
  else if (key === "Enter") keepLargest(map);
  else return key in ARROWS && arrow(map, ARROWS[key]);
  return true;
}

/**
 * Moves the kept cell, or else the window; on the whole map the arrows are the page's.
 *
 * @param {import("./map.js").MapView} map
 * @param {[number, number]} step
 */
function arrow(map, [down, across]) {
  const { query, key } = map.store.get();
  const window = map.window();
  if (query !== null && key !== null) {
    const next = { query: query + down, key: key + across };
    const { nQueries, nKeys } = map.sizes;
    if (next.query < 0 || next.key < 0 || next.query >= nQueries || next.key >= nKeys) return true;
    const held = holding(window, next.query, next.key, map.sizes);
    map.pointed = null;
    map.store.set({ ...next, window: isWhole(held, map.sizes) ? null : held });
    return true;
  }
  if (map.store.get().window === null) return false;
  const [top, bottom, left, right] = window;
  map.see(moved(window, down * (bottom - top) * PART, across * (right - left) * PART, map.sizes));
  return true;
}

/** @param {import("./map.js").MapView} map */
function keepLargest(map) {
  const { weights } = map;
  if (!weights) return;
  const [top, bottom, left, right] = map.window().map(Math.round);
  const best = { query: top, key: left };
  let most = -1;
  for (let query = top; query < bottom; query += 1) {
    for (let key = left; key < right; key += 1) {
      const weight = weights.probs[query * weights.nKeys + key];
      if (weight > most) {
        most = weight;
        Object.assign(best, { query, key });
      }
    }
  }
  map.store.set({ ...best, anchor: "query" });
}
