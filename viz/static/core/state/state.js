/**
 * What the page shows, in one place and in its address; fields.js says what it is made of.
 *
 * @typedef {import("./fields.js").State} State
 * @typedef {import("./fields.js").Limits} Limits
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 * @property {Pointed} pointed  passes with the pointer, and so is no part of the state
 *
 * @typedef {object} Pointed  the token under the pointer, for all pictures that have it
 * @property {() => import("../data/attention.js").Focus | null} get
 * @property {(token: import("../data/attention.js").Focus | null) => void} set
 * @property {(listener: () => void, ended?: AbortSignal) => void} subscribe
 */

import { FIELDS } from "./fields.js";

/**
 * @param {Limits} limits
 * @returns {State}
 */
export function initialState(limits) {
  const entries = FIELDS.map(({ name, start }) => [name, start(limits)]);
  return /** @type {State} */ (Object.fromEntries(entries));
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
    pointed: createPointed(),
  };
}

/** @returns {Pointed} */
function createPointed() {
  /** @type {Set<() => void>} */
  const listeners = new Set();
  /** @type {import("../data/attention.js").Focus | null} */
  let current = null;
  return {
    get: () => current,
    set(token) {
      if (token?.side === current?.side && token?.index === current?.index) return;
      current = token;
      for (const listener of listeners) listener();
    },
    subscribe(listener, ended) {
      listeners.add(listener);
      ended?.addEventListener("abort", () => listeners.delete(listener));
    },
  };
}

/**
 * The store as another text sees it: what that text does not have is left out.
 *
 * @param {Store} store
 * @param {() => Limits} from  of the text that the state is about
 * @param {Limits} to
 * @returns {Store}
 */
export function fittedStore(store, from, to) {
  /** @type {State | null} */
  let known = null;
  let fitted = store.get();
  return {
    ...store,
    get() {
      const state = store.get();
      if (state === known) return fitted;
      known = state;
      const { minimum, example, beside } = state;
      fitted = { ...fittedState(state, from(), to), minimum, example, beside };
      return fitted;
    },
  };
}

/**
 * A state with what another text has of it; the rest begins anew.
 *
 * @param {State} state
 * @param {Limits} from
 * @param {Limits} to
 * @returns {State}
 */
export function fittedState(state, from, to) {
  const kept = fromHash(toHash(state, from), to);
  const allHeads = state.heads.length === from.heads.length;
  return {
    ...kept,
    view: to.views.includes(state.view) ? state.view : to.view,
    theme: state.theme,
    layer: nearest(to.layers, state.layer),
    heads: allHeads ? to.heads : to.heads.filter((head) => state.heads.includes(head)),
  };
}

/**
 * @param {number[]} numbers
 * @param {number} wanted
 */
function nearest(numbers, wanted) {
  return numbers.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
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
  for (const { name, key, write = String } of FIELDS) {
    const value = state[name];
    if (value !== null && String(value) !== String(start[name])) written.set(key, write(value, state));
  }
  // Which side came first says nothing while only one is there.
  if (state.query === null || state.key === null) written.delete("from");
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
  const state = initialState(limits);
  for (const { name, key, read } of FIELDS) {
    const written = asked.get(key);
    const value = written === null ? undefined : read(written, limits, asked);
    if (value !== undefined) Object.assign(state, { [name]: value });
  }
  if (state.query === null && state.key !== null) state.anchor = "key";
  if (state.key === null) state.anchor = "query";
  return state;
}

/**
 * The head that a view of a single one shows.
 *
 * @param {State} state
 * @param {Limits} limits
 */
export function currentHead(state, limits) {
  return state.heads[0] ?? limits.heads[0];
}

/**
 * The token that is kept, if one is.
 *
 * @param {State} state
 * @returns {import("../data/attention.js").Focus | null}
 */
export function keptToken(state) {
  const index = state[state.anchor];
  return index === null ? null : { side: state.anchor, index };
}

/**
 * What a click on a token changes: keep it, move the kept one, or choose its counterpart.
 *
 * @param {State} state
 * @param {import("../data/attention.js").Focus} clicked
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

/**
 * The places of the heads that are on in the head axis of an example.
 *
 * @param {Store} store
 * @param {import("../data/example.js").Example} example
 */
export function placesOf(store, { heads }) {
  return store.get().heads.map((head) => heads.indexOf(head));
}
