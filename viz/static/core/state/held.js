/**
 * A value that listeners hear the changes of.
 *
 * @template Value
 * @typedef {object} Held
 * @property {() => Value} get
 * @property {(value: Value) => void} set
 * @property {(listener: () => void, ended?: AbortSignal) => void} subscribe  until the signal, if there is one
 */

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
 * A held object of which parts are changed.
 *
 * @template State
 * @param {State} start
 */
export function holdState(start) {
  const { get, set, subscribe } = hold(start);
  return { get, set: (/** @type {Partial<State>} */ change) => set({ ...get(), ...change }), subscribe };
}
