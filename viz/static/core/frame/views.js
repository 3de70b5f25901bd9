/** The views of the examples of a page, each made when it is first looked at. */

import { element } from "../draw/dom.js";

/**
 * @typedef {import("../data/example.js").Example} Example
 * @typedef {import("./kinds.js").View} View
 */

export class Views {
  constructor() {
    /** @type {Map<Example, {views: Map<string, View>, ending: AbortController}>} */
    this.made = new Map();
  }

  /**
   * @param {import("./kinds.js").Kind} kind
   * @param {"" | "beside"} place
   * @param {Omit<import("./kinds.js").Stage, "ended">} stage
   * @returns {View}
   */
  of(kind, place, stage) {
    const { example } = stage;
    const known = this.made.get(example) ?? { views: new Map(), ending: new AbortController() };
    this.made.set(example, known);
    const name = `${kind.id} ${place}`;
    const view = known.views.get(name) ?? newView(kind, { ...stage, ended: known.ending.signal });
    known.views.set(name, view);
    return view;
  }

  /** Lets go of all views. */
  end() {
    for (const { ending } of this.made.values()) ending.abort();
    this.made.clear();
  }
}

/**
 * @param {import("./kinds.js").Kind} kind
 * @param {import("./kinds.js").Stage} stage
 * @returns {View}
 */
function newView(kind, stage) {
  const missing = kind.missing(stage.example);
  return missing ? { root: element("p", { class: "missing" }, [missing]), side: [], update() {} } : kind.create(stage);
}
