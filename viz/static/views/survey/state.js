/**
 * What the report shows, in one place and in its address.
 *
 * @typedef {object} State
 * @property {"auto" | "light" | "dark"} theme
 * @property {number} place  the head that is chosen: layer times heads plus head
 * @property {string} measure  that the grid is coloured by
 * @property {string} compared  the measure that is shown plain and by norm
 * @property {string} changed  the measure that is shown with its gradient
 * @property {"layer" | "pattern"} colored  what the map of heads is coloured by
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 */

/**
 * @param {State} state
 * @param {State} start
 * @param {number} nHeads
 */
export function toHash(state, start, nHeads) {
  const asked = new URLSearchParams();
  for (const name of /** @type {const} */ (["theme", "measure", "compared", "changed", "colored"])) {
    if (state[name] !== start[name]) asked.set(name, state[name]);
  }
  if (state.place !== start.place) asked.set("head", `${Math.floor(state.place / nHeads)}-${state.place % nHeads}`);
  return asked.toString();
}

/**
 * The state that an address asks for; what this report does not have is passed over.
 *
 * @param {string} hash
 * @param {State} start
 * @param {{nLayers: number, nHeads: number, measures: string[], compared: string[], changed: string[]}} known
 * @returns {State}
 */
export function fromHash(hash, start, { nLayers, nHeads, measures, compared, changed }) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  /** @param {string} name @param {readonly string[]} possible */
  const one = (name, possible) => possible.find((value) => value === asked.get(name));
  const [, layer, head] = /^(\d{1,4})-(\d{1,4})$/.exec(asked.get("head") ?? "") ?? [];
  const there = layer !== undefined && Number(layer) < nLayers && Number(head) < nHeads;
  const state = {
    theme: one("theme", ["light", "dark"]),
    place: there ? Number(layer) * nHeads + Number(head) : undefined,
    measure: one("measure", measures),
    compared: one("compared", compared),
    changed: one("changed", changed),
    colored: one("colored", ["layer", "pattern"]),
  };
  const given = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined));
  return { ...start, ...given };
}
