/** The sentence above a picture: what is to be seen there. */

import { element } from "../draw/dom.js";

/** @typedef {import("./kinds.js").View} View */

/** The sentences of the views that are shown, each above its picture. */
export class Sentences {
  constructor() {
    /** @type {WeakMap<View, HTMLElement>} */
    this.made = new WeakMap();
  }

  /**
   * The place of a view's sentence; empty until it was asked.
   *
   * @param {View} view
   */
  of(view) {
    const made = this.made.get(view) ?? element("p", { class: "seen", role: "status" });
    this.made.set(view, made);
    return made;
  }

  /**
   * Asks each view what it shows; some know only after a while.
   *
   * @param {View[]} views
   */
  async ask(views) {
    await Promise.all(views.map(async (view) => this.write(this.of(view), (await view.says?.()) ?? [])));
  }

  /**
   * @param {HTMLElement} place
   * @param {import("../data/sentence.js").Part[]} parts
   */
  write(place, parts) {
    const nodes = parts.map((part) => (typeof part === "string" ? part : element("bdi", { class: "seen-token" }, [part.token])));
    const text = nodes.map((node) => (typeof node === "string" ? node : node.textContent)).join("");
    // Said aloud only where it changed.
    if (place.textContent !== text) place.replaceChildren(...nodes);
  }
}
