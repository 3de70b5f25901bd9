/**
 * How the scripts of a page reach what runs them. Each hands over what it brings in an event of its
 * own element, so that nothing becomes global.
 *
 * @typedef {object} Brought
 * @property {Kind[]} kinds  views
 * @property {(page: HTMLElement, kinds: Kind[]) => Promise<void>} [showPage]
 *
 * @import { Kind } from "./frame/kinds.js"
 */

import { fromBase85, inflate } from "./data/packed.js";

const EVENT = "minibert";

/** @param {Brought} brought */
export function handOver(brought) {
  document.currentScript?.dispatchEvent(new CustomEvent(EVENT, { detail: brought }));
}

/**
 * Runs the packed scripts of a page.
 *
 * @param {string} packed  style and script, see document.py
 * @returns {Promise<Required<Brought> & {style: string}>}
 */
export async function runPacked(packed) {
  const [style, code] = (await inflate(fromBase85(packed)).text()).split("\0");
  /** @type {Brought} */
  const all = { kinds: [] };
  const script = document.createElement("script");
  script.textContent = code;
  script.addEventListener(EVENT, (event) => {
    const { detail } = /** @type {CustomEvent<Brought>} */ (event);
    Object.assign(all, detail, { kinds: [...all.kinds, ...detail.kinds] });
  });
  document.head.append(script);
  script.remove();
  return /** @type {Required<Brought> & {style: string}} */ ({ ...all, style });
}
