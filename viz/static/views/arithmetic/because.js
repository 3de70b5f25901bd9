/**
 * Why the head looks there, below the arithmetic of a weight: the strongest pairs of what was written to the stream,
 * each head with a way to where it read what it wrote.
 *
 * @import { Example } from "../../core/data/example.js"
 * @import { Source } from "../../core/data/source.js"
 * @import { Asked, Pair, Part } from "../../core/data/why.js"
 * @import { Way } from "./steps.js"
 */

import { pairsOf } from "../../core/data/why.js";
import { signColor } from "../../core/draw/colors.js";
import { button } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { signed } from "../../core/text/numbers.js";
import { numeral, track } from "../../marks/cards.js";
import { named, words } from "./elements.js";

/** Pairs that are listed. */
const LISTED = 6;

export class Because {
  /** @param {Source} source @param {Example} example @param {(way: Way) => void} go */
  constructor(source, example, go) {
    this.source = source;
    this.example = example;
    this.go = go;
    this.said = element("div", { class: "because-said", "aria-live": "polite" });
    this.root = element("div", { role: "group", class: "because sum-view", "aria-label": "Why the head looks there" }, [element("h2", {}, ["Why does it look there?"]), this.said]);
    this.latest = 0;
  }

  /** @param {Asked} asked @param {{score: number, seen: boolean}} pair  seen: the query may look there @param {"light" | "dark"} theme */
  async show(asked, { score, seen }, theme) {
    this.latest += 1;
    const mine = this.latest;
    const vectors = await this.example.vectors(asked.layer, asked.head);
    if (!vectors) return;
    const pairs = await pairsOf(this.source, this.example.tokens, vectors, asked);
    // Another pair may have been asked for while this one was computed.
    if (mine !== this.latest) return;
    const sum = pairs.reduce((all, pair) => all + pair.score, 0);
    const adds = Math.abs(sum - score) <= 0.01 * Math.max(1, Math.abs(pairs[0].score), Math.abs(score));
    const masked = seen ? [] : [words("It may not look there: the score is masked, and its weight is 0.")];
    this.said.replaceChildren(...masked, ...(adds ? this.told(pairs, sum, asked, theme) : [words("An edit wrote the stream, a query, a key or the scores themselves, so this score is not the sum of what heads and MLPs wrote.")]));
    this.root.dataset.drawn = "true";
  }

  /** @param {Pair[]} pairs @param {number} sum @param {Asked} asked @param {"light" | "dark"} theme */
  told(pairs, sum, asked, theme) {
    const { tokens, keyTokens } = this.example;
    const most = Math.abs(pairs[0].score);
    const shown = pairs.slice(0, LISTED);
    const rest = sum - shown.reduce((all, { score }) => all + score, 0);
    const row = (/** @type {(Node | string)[]} */ name, /** @type {number} */ score) =>
      element("li", { class: "because-pair" }, [element("span", { class: "because-name" }, name), track(Math.abs(score) / most, signColor(score, theme)), numeral("pair", score, signed(score, 2))]);
    const items = shown.map(({ query, key, score }) => row([this.writer(query, asked.query), " × ", this.writer(key, asked.key)], score));
    return [
      words("The score is a sum over pairs: what was written to the stream at ", named(tokens, asked.query), " × what was written at ", named(keyTokens, asked.key), ". The largest of them, of ", numeral("whole", sum, signed(sum, 2)), ":"),
      element("ul", { class: "because-pairs" }, [...items, row([`${pairs.length - shown.length} other pairs`], rest)]),
      ...(shown.some(({ query, key }) => query.head || key.head) ? [words("Choose a head to see where it looked when it wrote this.")] : []),
    ];
  }

  /** Who wrote a part; a head leads to what it looked at there. @param {Part} part @param {number} position @returns {Node | string} */
  writer({ label, head }, position) {
    if (!head) return label;
    return button(label, () => this.go({ layer: head.layer, heads: [head.head], query: position, key: null, anchor: "query" }), { class: "because-way" });
  }
}
