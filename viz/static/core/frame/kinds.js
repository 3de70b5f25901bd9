/**
 * What the frame of a page knows of a view, and the order of the tabs.
 *
 * @typedef {object} Stage  what a view is given
 * @property {Example} example
 * @property {Store} store
 * @property {Limits} limits
 * @property {() => "light" | "dark"} theme
 * @property {() => Example | null} against  what this one stands beside, for
 *   the second of two; else null
 * @property {AbortSignal} ended  when another text takes the place of this one
 * @property {Changes} [changes]  of a page that runs a model
 *
 * @typedef {{quantity: string, layer: number, head?: number}} Place  of a run, where all of it can be changed
 *
 * @typedef {object} Changes
 * @property {(place: Place) => boolean} has
 * @property {(place: Place) => void} toggle
 * @property {() => string} to  what a click sets a place to, in words
 *
 * @typedef {object} View
 * @property {HTMLElement} root
 * @property {HTMLElement[]} side  cards that stand beside the picture
 * @property {() => Promise<void> | void} update  shows the store's state; called while visible
 * @property {() => Part[] | Promise<Part[]>} [says]  what
 *   is to be seen, in a sentence; asked after each update
 * @property {(event: KeyboardEvent) => boolean} [keydown]  true when the key meant something
 * @property {() => Promise<Figure>} [figure]  the picture as it is, to take away
 *
 * @typedef {object} Kind
 * @property {string} id
 * @property {string} label
 * @property {string} title  what it shows, in words
 * @property {(example: Example) => string} missing  why it cannot be shown;
 *   empty when it can
 * @property {boolean} [announced]  its tab is there, and says why it is missing, where no text of the page has it
 * @property {boolean} oneHead  it shows a single head: tiles choose instead of switching
 * @property {("layer" | "heads" | "filter" | "minimum" | "special")[]} controls
 * @property {(stage: Stage) => View} create
 *
 * @import { Example } from "../data/example.js"
 * @import { Part } from "../data/sentence.js"
 * @import { Figure } from "../export/figure.js"
 * @import { Limits, Store } from "../state/state.js"
 */

import { LONG, usualMinimum } from "../data/attention.js";
import { usualQuery } from "../data/softmax.js";
import { afterEscape, currentHead } from "../state/state.js";

/** A view that keeps what its stage gave. */
export class Staged {
  /** @param {Stage} stage */
  constructor({ example, store, limits, theme, ended, changes }) {
    this.example = example;
    this.store = store;
    this.limits = limits;
    this.theme = theme;
    this.ended = ended;
    this.changes = changes;
    /** Cards that stand beside the picture. @type {HTMLElement[]} */
    this.side = [];
  }

  /** The layer and the single head that are asked for. */
  asked() {
    const state = this.store.get();
    return { layer: state.layer, head: currentHead(state, this.limits) };
  }

  /** True while nothing else is asked for: numbers take a while. @param {{layer: number, head: number}} asked */
  stillAsked({ layer, head }) {
    const now = this.asked();
    return now.layer === layer && now.head === head;
  }

  /** Escape lets go of what is kept. @param {KeyboardEvent} event @returns {boolean}  whether it was that key */
  keydown({ key }) {
    if (key === "Escape") this.store.set(afterEscape(this.store.get()));
    return key === "Escape";
  }

  /** The token that a page before a model is about: the chosen one, else the one it predicts. */
  position() {
    const { query } = this.store.get();
    const { tokens, source } = this.example;
    return query ?? source?.predicted ?? usualQuery(tokens);
  }
}

/** The views in the order of their tabs: those of page.py, and those of a page before a model. */
const ORDER = ["whole", "head", "model", "neuron", "arithmetic", "map", "layers"];

/** @param {Kind[]} kinds */
export function inOrder(kinds) {
  return [...kinds].sort((one, other) => ORDER.indexOf(one.id) - ORDER.indexOf(other.id));
}

/**
 * @param {Example} example
 * @param {Kind[]} kinds
 * @param {string} view  the one to begin with, where the example has it
 * @param {number} examples  how many there are
 * @returns {Limits}
 */
export function limitsOf(example, kinds, view, examples) {
  const views = kinds.filter((kind) => !kind.missing(example)).map(({ id }) => id);
  const [size, keys] = [example.tokens.text.length, example.keyTokens.text.length];
  const longest = Math.max(size, keys);
  const segments = [...example.tokens.segment, ...example.keyTokens.segment];
  return {
    views,
    view: views.includes(view) ? view : views[0],
    examples,
    layers: example.layers,
    heads: example.heads,
    first: longest > LONG ? example.heads.slice(0, 1) : example.heads,
    size,
    keys,
    minimum: usualMinimum(longest),
    pair: segments.includes(1) && segments.includes(0) && example.keyTokens === example.tokens,
  };
}
