/**
 * The two columns of tokens: the one that looks on the left, the one looked at on the right.
 *
 * @typedef {import("../../core/data/attention.js").Side} Side
 */

import { opposite } from "../../core/data/attention.js";
import { element } from "../../core/draw/dom.js";
import { percent } from "../../core/text/text.js";
import { rowHeight, Rows, tokenOf } from "../../marks/rows.js";
import { sideNames } from "./parts.js";

/** CSS pixels around the window in which rows are there, and between the places where more are made. */
const NEAR = 320;
/** Of a text of so many tokens all rows are made, some time after the first ones. */
const ALL = 400;
const PAUSE = 400;

export class Columns {
  /**
   * @param {import("../../core/data/example.js").Example} example
   * @param {() => void} reached  called when other rows come near the window
   * @param {AbortSignal} ended
   */
  constructor(example, reached, ended) {
    const [from, to] = sideNames(example).map((name) => name && `: ${name}`);
    this.row = rowHeight(example);
    this.query = new Rows(example.tokens, "query", `Tokens that look (query)${from}`, this.row);
    this.key = new Rows(example.keyTokens, "key", `Tokens that are looked at (key)${to}`, this.row);
    this.middles = { query: this.query.middles, key: this.key.middles };
    this.printed = false;
    /** Whether rows are made that are not near the window: so that a picture of the whole page has them. */
    this.all = false;
    if (Math.max(this.query.size, this.key.size) <= ALL) {
      setTimeout(() => {
        this.all = true;
        if (this.reach()) reached();
      }, PAUSE);
    }
    /** The heights between which rows are there. */
    this.from = this.to = 0;
    /** The weights that stand beside the tokens. @type {HTMLElement[]} */
    this.written = [];
    for (const change of ["scroll", "resize", "beforeprint", "afterprint"]) {
      const follow = () => {
        this.printed = change === "beforeprint";
        if (this.reach()) reached();
      };
      // While it is captured: pages also lie in parts of a window that scroll by themselves.
      addEventListener(change, follow, { passive: true, capture: true, signal: ended });
    }
  }

  /**
   * Finds out which rows are near the window; on paper, all.
   *
   * @returns {boolean}  whether they are others than before
   */
  reach() {
    const { from, to } = this;
    const { top } = this.query.root.getBoundingClientRect();
    this.from = Math.floor(-top / NEAR - 1) * NEAR;
    this.to = Math.ceil((innerHeight - top) / NEAR + 1) * NEAR;
    if (this.printed || this.all) [this.from, this.to] = [0, Infinity];
    return from !== this.from || to !== this.to;
  }

  /**
   * Makes the rows that were reached, and marks the tokens: kept, in focus, taking part.
   *
   * @param {import("../../core/data/attention.js").Shown} shown
   * @param {import("../../core/data/attention.js").Focus | null} focus
   * @param {Record<Side, number | null>} kept
   * @param {Record<Side, Set<number>>} found  what is searched for
   */
  mark(shown, focus, kept, found) {
    for (const side of /** @type {Side[]} */ (["query", "key"])) {
      const rows = this[side];
      const chosen = kept[side];
      rows.show(this.from, this.to);
      if (chosen !== null && chosen < rows.size) rows.at(chosen);
      rows.mark(focus?.side === side ? focus.index : -1, chosen);
      for (const [i, item] of rows.items) {
        item.classList.toggle("out", !shown[side][i]);
        item.classList.toggle("found", found[side].has(i));
      }
    }
  }

  /**
   * Writes weights beside the tokens opposite the focus.
   *
   * @param {import("../../core/data/attention.js").Focus | null} focus
   * @param {ArrayLike<number>} [means]
   * @param {number[]} [places]
   */
  write(focus, means = [], places = []) {
    for (const weight of this.written) weight.remove();
    this.written = places.map((i) => element("data", { class: "weight", value: String(means[i]) }, [percent(means[i])]));
    places.forEach((place, i) => focus && this[opposite(focus.side)].at(place).append(this.written[i]));
  }

  /**
   * The token that has the focus; Tab comes back to it.
   *
   * @param {EventTarget | null} target
   */
  focused(target) {
    const token = tokenOf(target);
    if (token) this[token.side].stop = token.index;
    return token;
  }

  /**
   * Gives the keyboard's focus to a token; only it stays in the tab order of its column.
   *
   * @param {import("../../core/data/attention.js").Focus} token
   */
  focus({ side, index }) {
    this[side].stop = index;
    this[side].at(index).focus();
  }
}

