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

const EVENT = "minibert";

/** @param {Brought} brought */
export function handOver(brought) {
  document.currentScript?.dispatchEvent(new CustomEvent(EVENT, { detail: brought }));
}

/** Runs the script of a page; what it brought. @param {string} code @returns {Required<Brought>} */
export function run(code) {
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
  return /** @type {Required<Brought>} */ (all);
}
