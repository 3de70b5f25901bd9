/**
 * The pictures of a page, in the order of their tabs. Each is a file that exports its Kind, on a
 * line of its own below: bundle.py leaves out those that a page has no numbers for.
 *
 * @typedef {object} Stage  what a view is given
 * @property {import("../data/example.js").Example} example
 * @property {import("./state.js").Store} store
 * @property {import("./state.js").Limits} limits
 * @property {() => "light" | "dark"} theme
 * @property {() => import("../data/example.js").Example | null} against  what this one stands beside, for
 *   the second of two; else null
 *
 * @typedef {object} View
 * @property {HTMLElement} root
 * @property {HTMLElement[]} side  cards that stand beside the picture
 * @property {() => Promise<void> | void} update  shows the store's state; called while visible
 * @property {(event: KeyboardEvent) => boolean} [keydown]  true when the key meant something
 * @property {() => Promise<import("../export/figure.js").Figure>} [figure]  the picture as it is, to take away
 *
 * @typedef {object} Kind
 * @property {string} id
 * @property {string} label
 * @property {string} title  what it shows, in words
 * @property {(example: import("../data/example.js").Example) => string} missing  why it cannot be shown;
 *   empty when it can
 * @property {boolean} oneHead  it shows a single head: tiles choose instead of switching
 * @property {("layer" | "heads" | "filter" | "minimum" | "top" | "special")[]} controls
 * @property {(stage: Stage) => View} create
 */

import { arithmeticKind } from "../arithmetic/arithmetic.js";
import { headKind } from "../head/head.js";
import { lensKind } from "../lens/lens.js";
import { mapKind } from "../map/map.js";
import { modelKind } from "../model/model.js";
import { neuronKind } from "../neuron/neuron.js";
import { shadedKind } from "../shaded/shaded.js";

/** @type {Kind[]} */
export const KINDS = [
  headKind,
  modelKind,
  neuronKind,
  arithmeticKind,
  mapKind,
  shadedKind,
  lensKind,
];
