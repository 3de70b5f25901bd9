/**
 * A value that listeners hear the changes of.
 *
 * @template Value
 * @typedef {object} Held
 * @property {() => Value} get
 * @property {(value: Value) => void} set
 * @property {(listener: () => void, ended?: AbortSignal) => void} subscribe  until the signal, if there is one
 *
 * @import { Focus, Side } from "../data/attention.js"
 * @import { Example } from "../data/example.js"
 * @import { Address } from "../frame/frame.js"
 */

import { FILTERS, MINIMA } from "../data/attention.js";

/**
 * @template Value
 * @param {Value} start
 * @param {(one: Value, other: Value) => boolean} [same]  of what is the same, nobody is told
 * @returns {Held<Value>}
 */
export function hold(start, same = () => false) {
  /** @type {Set<() => void>} */
  const listeners = new Set();
  let current = start;
  return {
    get: () => current,
    set(value) {
      if (same(value, current)) return;
      current = value;
      for (const listener of listeners) listener();
    },
    subscribe(listener, ended) {
      listeners.add(listener);
      ended?.addEventListener("abort", () => listeners.delete(listener));
    },
  };
}

/**
 * What the page shows, in one place and in its address; FIELDS says what it is made of.
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 * @property {Pointed} pointed  passes with the pointer, and so is not a part of the state
 *
 * @typedef {Held<Focus | null>} Pointed  the token
 *   under the pointer, for all pictures that have it
 */

/** @param {Limits} limits @returns {State} */
export function initialState(limits) {
  const entries = FIELDS.map(({ name, start }) => [name, start(limits)]);
  return /** @type {State} */ (Object.fromEntries(entries));
}

/**
 * @template State
 * @param {State} state
 * @param {(state: State) => State} [fit]  of what is set, what the text that is shown has
 */
export function createStore(state, fit = (one) => one) {
  const nothing = /** @type {Focus | null} */ (null);
  const pointed = hold(nothing, (one, other) => one?.side === other?.side && one?.index === other?.index);
  const { get, set, subscribe } = hold(state);
  return { get, set: (/** @type {Partial<State>} */ change) => set(fit({ ...get(), ...change })), subscribe, pointed };
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
  let known = /** @type {State | null} */ (null);
  let fitted = store.get();
  const pointed = () => {
    const one = store.pointed.get();
    return one && one.index < (one.side === "query" ? to.size : to.keys) ? one : null;
  };
  return {
    ...store,
    pointed: { ...store.pointed, get: pointed },
    get() {
      const state = store.get();
      if (from() === to) return state;
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
 * The state without what the text does not have. Who clicks may do so in a picture of another one:
 * of the text beside it, or of that before it, which stays until this one is drawn.
 *
 * @param {State} state
 * @param {Limits} limits
 * @returns {State}
 */
export function within(state, { size, keys, layers, heads }) {
  const token = (/** @type {number | null} */ index, /** @type {number} */ count) => (index !== null && index < count ? index : null);
  return {
    ...state,
    layer: nearest(layers, state.layer),
    heads: state.heads.filter((head) => heads.includes(head)),
    query: token(state.query, size),
    key: token(state.key, keys),
  };
}

/** @param {number[]} numbers @param {number} wanted */
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

/** The head that a view of a single one shows. @param {State} state @param {Limits} limits */
export function currentHead(state, limits) {
  return state.heads[0] ?? limits.heads[0];
}

/** The token that is kept, if one is. @param {State} state @returns {Focus | null} */
export function keptToken(state) {
  const index = state[state.anchor];
  return index === null ? null : { side: state.anchor, index };
}

/**
 * What a click on a token changes: keep it, move the kept one, or choose its counterpart.
 *
 * @param {State} state
 * @param {Focus} clicked
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

/** The places of the heads that are on in the head axis of an example. @param {Store} store @param {Example} example */
export function placesOf(store, { heads }) {
  return store.get().heads.map((head) => heads.indexOf(head));
}

/**
 * @typedef {object} Tokens
 * @property {Focus | null} token  the one that has the keyboard
 * @property {Focus | null} from  where the arrows begin
 * @property {(side: Side) => number} size  of a text
 * @property {(token: Focus) => void} focus  gives it the keyboard
 */

/** @param {KeyboardEvent} event @param {Store} store @param {Tokens} tokens @returns {boolean}  whether the key meant something */
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

/** @returns {Address} */
export function pageAddress() {
  return {
    read: () => location.hash,
    write,
    listen: (changed) => addEventListener("hashchange", changed),
  };
}

/** Browsers go back to what is shown now. In a notebook a page has no address. */
export function keepPlace() {
  if (location.protocol !== "about:") history.pushState(null, "", location.href);
}

/** @param {string} hash */
function write(hash) {
  if (hash === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  } catch {
    // Safari allows a hundred changes in half a minute; a later change writes the address.
  }
}

/**
 * What the state of a page is made of, and how each part is written in the page's address.
 *
 * A view that needs a part of its own adds a row here.
 *
 * @typedef {object} State
 * @property {string} view  the picture that is shown
 * @property {number} example  which text
 * @property {number | null} beside  the text shown next to it
 * @property {number} layer  the layer's number in the model
 * @property {number[]} heads  numbers of the heads that are on
 * @property {number | null} query  the token kept on the side that looks
 * @property {number | null} key  the token kept on the side that is looked at
 * @property {Side} anchor  the side that was chosen first
 * @property {string} filter
 * @property {number} minimum  percent; weights below are not drawn
 * @property {boolean} special  whether special tokens take part
 * @property {"auto" | "light" | "dark"} theme
 * @property {string} number  arithmetic view: the quantity that is worked out; empty: an attention weight
 * @property {number | null} dimension  of it: a dimension, a neuron, or a token id of the logits
 * @property {string} split  of it: what the score is split into, "parts" or "features"
 * @property {number} zoom  of the map: how often its cells are doubled
 * @property {string} level  what is open: of the whole, "layer"; of the arithmetic, a step; empty: the first
 *
 * @typedef {object} Limits  what a state may hold
 * @property {string[]} views
 * @property {string} view  the one to begin with
 * @property {number} examples
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {number[]} first  those that are on to begin with
 * @property {number} size  tokens that look
 * @property {number} keys  tokens that are looked at
 * @property {number} minimum  the threshold to begin with
 * @property {boolean} pair
 *
 * @typedef {object} Field
 * @property {keyof State} name
 * @property {string} key  its name in the address
 * @property {(limits: Limits) => any} start
 * @property {(written: string, limits: Limits, asked: URLSearchParams) => any} read  undefined:
 *   nothing that this page has
 * @property {(value: any, state: State) => string} [write]
 */

const among = (/** @type {string[]} */ possible) => (/** @type {string} */ written) => oneOf(written, possible);

/** How often the cells of a map are doubled, at most. */
export const MOST_ZOOM = 6;

/** Each by its name in the state and in the address. @type {Field[]} */
export const FIELDS = [
  field("view", "view", ({ view }) => view, (written, { views }) => oneOf(written, views)),
  field("example", "example", 0, (written, { examples }) => whole(written, range(examples))),
  field("beside", "beside", null, (written, { examples }) => whole(written, range(examples))),
  field("layer", "layer", ({ layers }) => layers[0], (written, { layers }) => whole(written, layers)),
  field("heads", "heads", ({ first }) => first, (written, { heads }) => askedHeads(written, heads), (heads) => heads.join(".") || "none"),
  field("query", "query", null, (written, { size }) => whole(written, range(size))),
  field("key", "key", null, (written, { keys }) => whole(written, range(keys))),
  field("anchor", "from", "query", (written) => (written === "key" ? "key" : "query")),
  field("filter", "filter", "all", (written, { pair }) => oneOf(written, pair ? FILTERS.map(({ id }) => id) : ["all"])),
  field("minimum", "min", ({ minimum }) => minimum, (written) => (MINIMA.includes(Number(written)) ? Number(written) : undefined)),
  field("special", "special", true, (written) => written !== "off", () => "off"),
  field("theme", "theme", "auto", among(["light", "dark"])),
  field("number", "number", "", (written) => (/^[a-z_]{1,20}$/.test(written) ? written : undefined)),
  field("dimension", "dim", null, (written) => (/^\d{1,7}$/.test(written) ? Number(written) : undefined)),
  field("split", "split", "parts", among(["parts", "features"])),
  field("zoom", "zoom", 0, (written) => whole(written, range(MOST_ZOOM + 1))),
  field("level", "level", "", (written) => (/^[a-z-]{1,20}$/.test(written) ? written : undefined)),
];

/**
 * @param {keyof State} name
 * @param {string} key
 * @param {Field["start"] | string | number | boolean | null} start  a value, or a function of the limits
 * @param {Field["read"]} read
 * @param {Field["write"]} [write]
 * @returns {Field}
 */
function field(name, key, start, read, write) {
  return { name, key, start: typeof start === "function" ? start : () => start, read, write };
}

/** @param {number} size */
function range(size) {
  return Array.from({ length: size }, (_, i) => i);
}

/** @param {string} written @param {number[]} possible */
export function whole(written, possible) {
  const number = /^\d+$/.test(written) ? Number(written) : NaN;
  return possible.includes(number) ? number : undefined;
}

/** @param {string} written @param {string[]} possible */
function oneOf(written, possible) {
  return possible.includes(written) ? written : undefined;
}

/** @param {string} written @param {number[]} possible */
function askedHeads(written, possible) {
  if (written === "none") return [];
  const numbers = written.split(".").map((part) => whole(part, possible));
  const heads = possible.filter((head) => numbers.includes(head));
  return heads.length ? heads : undefined;
}
