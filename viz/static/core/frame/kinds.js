/**
 * What the frame of a page knows of a view, and the order of the tabs.
 *
 * @typedef {object} Stage  what a view is given
 * @property {import("../data/example.js").Example} example
 * @property {import("../state/state.js").Store} store
 * @property {import("../state/state.js").Limits} limits
 * @property {() => "light" | "dark"} theme
 * @property {() => import("../data/example.js").Example | null} against  what this one stands beside, for
 *   the second of two; else null
 * @property {AbortSignal} ended  when another text takes the place of this one
 *
 * @typedef {object} View
 * @property {HTMLElement} root
 * @property {HTMLElement[]} side  cards that stand beside the picture
 * @property {() => Promise<void> | void} update  shows the store's state; called while visible
 * @property {() => import("../data/sentence.js").Part[] | Promise<import("../data/sentence.js").Part[]>} [says]  what
 *   is to be seen, in a sentence; asked after each update
 * @property {(event: KeyboardEvent) => boolean} [keydown]  true when the key meant something
 * @property {() => Promise<import("../export/figure.js").Figure>} [figure]  the picture as it is, to take away
 * @property {(event: Event) => {layer: number, head: number} | null} [headAt]  the head that a click or a key
 *   is about, in a picture of many
 *
 * @typedef {object} Kind
 * @property {string} id
 * @property {string} label
 * @property {string} title  what it shows, in words
 * @property {(example: import("../data/example.js").Example) => string} missing  why it cannot be shown;
 *   empty when it can
 * @property {boolean} [announced]  its tab is there, and says why it is missing, where no text of the page has it
 * @property {boolean} oneHead  it shows a single head: tiles choose instead of switching
 * @property {("layer" | "heads" | "filter" | "minimum" | "top" | "special")[]} controls
 * @property {(stage: Stage) => View} create
 */

/** The views in the order of their tabs: those of page.py, and those of a page before a model. */
const ORDER = ["whole", "head", "model", "neuron", "arithmetic", "joint", "map", "text", "layers"];

/** @param {Kind[]} kinds */
export function inOrder(kinds) {
  return [...kinds].sort((one, other) => ORDER.indexOf(one.id) - ORDER.indexOf(other.id));
}
