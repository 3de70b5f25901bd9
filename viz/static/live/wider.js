/** The arithmetic view before a model: it reaches every number, and not attention weights alone. */

import { everyNumber } from "../views/arithmetic/every.js";

/** @typedef {import("../core/frame/kinds.js").Kind} Kind */

/**
 * The kinds of a page with a wider arithmetic view in the place of the one for weights.
 *
 * @param {Kind[]} kinds
 */
export function withNumbers(kinds) {
  return kinds.map((kind) => (kind.id === "arithmetic" ? everyNumber(kind) : kind));
}
