/**
 * Where the pictures and their cards stand: one, or two side by side. Pictures of new examples are
 * drawn behind those that are seen, and take their place when they are ready.
 *
 * @typedef {{view: View, said: HTMLElement}} Picture  said: the place of its sentence
 *
 * @import { Part } from "../data/sentence.js"
 * @import { Kind, Stage, View } from "./kinds.js"
 */

import { element } from "../draw/dom.js";

/** Milliseconds that are waited for a picture that is drawn in several slices of time. */
const LONGEST = 150;

export class Pictures {
  /** @param {HTMLElement} host  of the page: two pictures need its whole width */
  constructor(host) {
    this.host = host;
    /** @type {HTMLElement} */
    this.root = element("div", { class: "pictures" });
    this.side = element("aside", { class: "side", "aria-label": "In numbers", tabindex: "0" });
    this.body = element("div", { class: "body", role: "tabpanel" }, [this.root, this.side]);
    /** @type {{root: HTMLElement, cards: HTMLElement[], two: boolean, views: HTMLElement[]} | null} */
    this.waiting = null;
  }

  /**
   * One picture, or two with a name above each and above its cards.
   *
   * @param {Picture[]} shown
   * @param {string[]} names
   * @param {boolean} later  not before `reveal`
   */
  place(shown, names, later) {
    const two = shown.length > 1;
    const named = (/** @type {number} */ i) => element("h2", { class: "which" }, [element("bdi", {}, [names[i]])]);
    const roots = shown.flatMap(({ view: { root }, said }, i) =>
      two ? [element("section", { class: "picture", "aria-label": names[i] }, [named(i), said, root])] : [said, root],
    );
    const cards = shown.flatMap(({ view: { side } }, i) =>
      two && side.length ? [element("div", { class: "cards" }, [named(i), ...side])] : side,
    );
    this.waiting?.root.remove();
    this.waiting = null;
    if (!later) return this.put(this.root, roots, cards, two);
    const root = element("div", { class: `pictures arriving${two ? " two" : ""}` }, roots);
    this.root.after(root);
    this.waiting = { root, cards, two, views: shown.map(({ view }) => view.root) };
    return undefined;
  }

  /** @param {HTMLElement} root @param {HTMLElement[]} roots @param {HTMLElement[]} cards @param {boolean} two */
  put(root, roots, cards, two) {
    for (const part of [this.host, root, this.side]) part.classList.toggle("two", two);
    if (roots.length) root.replaceChildren(...roots);
    this.side.replaceChildren(...cards);
    this.side.hidden = !cards.length;
    this.body.classList.toggle("alone", !cards.length);
  }

  /** Done when the pictures that wait are drawn, or have taken too long. */
  async ready() {
    const until = performance.now() + LONGEST;
    const roots = () => this.waiting?.views ?? [];
    const drawn = (/** @type {HTMLElement} */ root) => root.matches("[data-drawn], .missing") || root.querySelector("[data-drawn], .missing");
    // No frames come while a window is hidden.
    while (!roots().every(drawn) && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 4));
  }

  /** Shows the pictures that wait; the keyboard stays where it was. */
  reveal() {
    if (!this.waiting) return;
    const { root, cards, two } = this.waiting;
    this.waiting = null;
    const { activeElement } = /** @type {Document | ShadowRoot} */ (this.body.getRootNode());
    const used = this.body.contains(activeElement) ? /** @type {HTMLElement} */ (activeElement) : null;
    root.classList.remove("arriving");
    // It stands behind the one before it already: what is moved is styled and laid out once more.
    this.root.remove();
    this.root = root;
    this.put(root, [], cards, two);
    if (used && !used.isConnected) likeIn(this.body, used)?.focus({ preventScroll: true });
  }
}

/**
 * The element that is to a picture what another was to the one before it.
 *
 * @param {HTMLElement} body
 * @param {HTMLElement} gone
 */
function likeIn(body, gone) {
  const about = (/** @type {HTMLElement} */ one) =>
    JSON.stringify([one.tagName, one.classList[0], one.getAttribute("role"), one.dataset.side, one.dataset.index]);
  const wanted = about(gone);
  const all = /** @type {NodeListOf<HTMLElement>} */ (body.querySelectorAll(gone.tagName));
  return [...all].find((one) => about(one) === wanted);
}

/** @param {Kind} kind @param {Stage} stage @returns {View} */
export function newView(kind, stage) {
  const missing = kind.missing(stage.example);
  return missing ? { root: element("p", { class: "missing" }, [missing]), side: [], update() {} } : kind.create(stage);
}

/** Says a sentence aloud, unless it is there already. @param {HTMLElement} place @param {Part[]} parts */
export function say(place, parts) {
  const nodes = parts.map((part) => (typeof part === "string" ? part : element("bdi", { class: "seen-token" }, [part.token])));
  const text = nodes.map((node) => (typeof node === "string" ? node : node.textContent)).join("");
  if (place.textContent !== text) place.replaceChildren(...nodes);
}
