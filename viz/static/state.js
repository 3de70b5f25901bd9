/**
 * What the page shows, in one place and in its address.
 *
 * @typedef {object} State
 * @property {number} layer  the layer's number in the model
 * @property {number[]} heads  numbers of the heads that are on
 * @property {number | null} query  the token kept on the left
 * @property {number | null} key  the token kept on the right
 * @property {import("./attention.js").Side} anchor  the side that was chosen first
 * @property {string} filter
 * @property {number} minimum  percent; weights below are not drawn
 * @property {boolean} special  whether special tokens take part
 * @property {"auto" | "light" | "dark"} theme
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 *
 * @typedef {object} Limits  what a state may hold
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {number} size
 * @property {number} minimum  the threshold to begin with
 * @property {boolean} pair
 */

import { FILTERS, MINIMA } from "./attention.js";

/**
 * @param {Limits} limits
 * @returns {State}
 */
export function initialState(limits) {
  return {
    layer: limits.layers[0],
    heads: limits.heads,
    query: null,
    key: null,
    anchor: "query",
    filter: "all",
    minimum: limits.minimum,
    special: true,
    theme: "auto",
  };
}

/**
 * @param {State} state
 * @returns {Store}
 */
export function createStore(state) {
  /** @type {(() => void)[]} */
  const listeners = [];
  let current = state;
  return {
    get: () => current,
    set(change) {
      current = { ...current, ...change };
      for (const listener of listeners) listener();
    },
    subscribe: (listener) => void listeners.push(listener),
  };
}

/**
 * The state as the part of an address behind "#"; what is as at the start is left out.
 *
 * @param {State} state
 * @param {Limits} limits
 */
export function toHash(state, limits) {
  const start = initialState(limits);
  const written = new URLSearchParams();
  if (state.layer !== start.layer) written.set("layer", String(state.layer));
  if (state.heads.length !== start.heads.length) {
    written.set("heads", state.heads.join(".") || "none");
  }
  if (state.query !== null) written.set("query", String(state.query));
  if (state.key !== null) written.set("key", String(state.key));
  if (state.query !== null && state.key !== null && state.anchor === "key") {
    written.set("from", "key");
  }
  if (state.filter !== start.filter) written.set("filter", state.filter);
  if (state.minimum !== start.minimum) written.set("min", String(state.minimum));
  if (!state.special) written.set("special", "off");
  if (state.theme !== "auto") written.set("theme", state.theme);
  return written.toString();
}

/**
 * The state an address asks for; anything that is not on this page is passed over.
 *
 * @param {string} hash
 * @param {Limits} limits
 * @returns {State}
 */
export function fromHash(hash, limits) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  const start = initialState(limits);
  const token = (/** @type {string} */ name) => whole(asked.get(name), range(limits.size));
  const query = token("query");
  const key = token("key");
  const filters = limits.pair ? FILTERS.map(({ id }) => id) : ["all"];
  const filter = asked.get("filter") ?? "";
  const minimum = Number(asked.get("min") ?? start.minimum);
  const theme = asked.get("theme");
  return {
    layer: whole(asked.get("layer"), limits.layers) ?? start.layer,
    heads: askedHeads(asked.get("heads"), limits.heads),
    query,
    key,
    anchor: key !== null && (query === null || asked.get("from") === "key") ? "key" : "query",
    filter: filters.includes(filter) ? filter : "all",
    minimum: MINIMA.includes(minimum) ? minimum : start.minimum,
    special: asked.get("special") !== "off",
    theme: theme === "light" || theme === "dark" ? theme : "auto",
  };
}

/** @param {number} size */
function range(size) {
  return Array.from({ length: size }, (_, i) => i);
}

/**
 * @param {string | null} written
 * @param {number[]} possible
 */
function whole(written, possible) {
  const number = written && /^\d+$/.test(written) ? Number(written) : NaN;
  return possible.includes(number) ? number : null;
}

/**
 * @param {string | null} written
 * @param {number[]} possible
 */
function askedHeads(written, possible) {
  if (written === "none") return [];
  const numbers = (written ?? "").split(".").map((part) => whole(part, possible));
  const heads = possible.filter((head) => numbers.includes(head));
  return heads.length ? heads : possible;
}

/**
 * The token that is kept, if one is.
 *
 * @param {State} state
 * @returns {import("./attention.js").Focus | null}
 */
export function keptToken(state) {
  const index = state[state.anchor];
  return index === null ? null : { side: state.anchor, index };
}

/**
 * What a click on a token changes: keep it, move the kept one, or choose its counterpart.
 *
 * @param {State} state
 * @param {import("./attention.js").Focus} clicked
 * @returns {Partial<State>}
 */
export function afterClick(state, { side, index }) {
  const kept = keptToken(state);
  if (!kept) return { query: null, key: null, anchor: side, [side]: index };
  if (kept.side === side) {
    return kept.index === index ? { query: null, key: null } : { [side]: index };
  }
  return { [side]: state[side] === index ? null : index };
}

/**
 * What Escape changes: the counterpart goes first, then the kept token.
 *
 * @param {State} state
 * @returns {Partial<State>}
 */
export function afterEscape(state) {
  if (state.query !== null && state.key !== null) {
    return state.anchor === "query" ? { key: null } : { query: null };
  }
  return { query: null, key: null };
}
