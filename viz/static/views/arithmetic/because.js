/**
 * Why the head looks there: the largest parts of the score, and what the heads that wrote them had read.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Asked, Reason, Writer } from "../../core/data/reasons.js"
 * @import { Story } from "./weight.js"
 * @import { Way } from "./steps.js"
 */

import { featuresOf, reasonOf } from "../../core/data/reasons.js";
import { sees } from "../../core/data/softmax.js";
import { signColor } from "../../core/draw/colors.js";
import { button, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { counted, share, signed } from "../../core/text/numbers.js";
import { numeral, track } from "../../marks/cards.js";
import { named, words } from "./elements.js";

/** Pairs that are listed. */
const LISTED = 6;
/** A head that gives a token more than this has read mostly that one. */
const MOSTLY = 0.5;

const WAYS = [
  { id: "parts", label: "By heads and MLPs" },
  { id: "features", label: "By features" },
];
const HOW = "A feature is a direction that a sparse autoencoder found, times how strongly the token has it: feature 1-128 is number 128 of layer 1. The feature bias is the same for every token, and the feature error is what no feature explains.";

export class Because {
  /** @param {(way: Way) => void} go */
  constructor(go) {
    this.go = go;
    this.said = element("div", { class: "because-said", "aria-live": "polite" });
    this.by = segments(WAYS, (id) => this.go({ split: id }), "What the score is split into");
    this.root = element("div", { role: "group", class: "because", "aria-label": "Why the head looks there" }, [element("h2", {}, ["Why does it look there?"]), this.by.root, this.said]);
    this.latest = 0;
  }

  /** @param {Story} story @param {Asked} asked @param {string} by  the way that is chosen @param {"light" | "dark"} theme */
  async show(story, asked, by, theme) {
    const { example, vectors, row } = story;
    this.root.hidden = !example.source && !example.header.why;
    if (this.root.hidden) return;
    const place = featuresOf(example);
    const features = by === "features" && place !== null;
    this.by.root.hidden = !place;
    this.by.show(features ? "features" : "parts");
    this.latest += 1;
    const mine = this.latest;
    const found = await reasonOf(example, vectors, asked, features);
    const reason = found ?? (features ? await reasonOf(example, vectors, asked, false) : null);
    const isFeature = (/** @type {Writer} */ { label }) => label.startsWith("feature ");
    // A page without a model holds the largest pairs of those heads alone that read features.
    const below = !found || (example.source && !found.pairs.some(({ query, key }) => isFeature(query) || isFeature(key)));
    const split = features && reason && place ? [words(below ? `The features are of ${place[0]} of layer ${place[1]}, which this head does not read. So the parts are those of heads and MLPs.` : HOW)] : [];
    const parts = reason ? [...(await readings(example, reason, asked)), ...this.bars(example, reason, asked, theme), ...split] : [];
    // Another pair may have been asked for while this one was computed.
    if (mine !== this.latest) return;
    const score = row.scores[asked.key];
    // What a page holds was compared when it was made.
    const adds = !example.source || (reason && Math.abs(reason.sum - score) <= 0.01 * Math.max(1, Math.abs(reason.pairs[0].score), Math.abs(score)));
    const masked = sees(row, asked.key) ? [] : [words("It may not look there: the score is masked, and its weight is 0.")];
    const edited = words("An edit wrote the stream, a query, a key or the scores themselves, so this score is not the sum of what heads and MLPs wrote.");
    this.said.replaceChildren(...masked, ...(reason ? (adds ? [mostOf(example, reason, asked), ...parts] : [edited]) : [absent(example, row.end - row.first, asked)]));
    this.root.dataset.drawn = "true";
  }

  /** @param {Example} example @param {Reason} reason @param {Asked} asked @param {"light" | "dark"} theme */
  bars({ tokens, keyTokens }, { pairs, sum }, asked, theme) {
    const shown = pairs.slice(0, LISTED);
    const rest = sum - shown.reduce((all, { score }) => all + score, 0);
    const most = Math.max(Math.abs(pairs[0].score), Math.abs(rest));
    const row = (/** @type {(Node | string)[]} */ name, /** @type {number} */ score) =>
      element("li", { class: "because-pair" }, [element("span", { class: "because-name" }, name), track(Math.abs(score) / most, signColor(score, theme)), numeral("pair", score, signed(score, 2))]);
    const items = shown.map(({ query, key, score }) => row([this.writer(query, asked.query), " × ", this.writer(key, asked.key)], score));
    const example = shown.flatMap(({ query, key }) => [query.head, key.head]).find(Boolean);
    return [
      words("Each part is something that was written at ", named(tokens, asked.query), " × something that was written at ", named(keyTokens, asked.key), ". Blue speaks for looking there, orange against. All parts together are the score. A weight is large if this score is larger than those of the other keys."),
      element("ul", { class: "because-pairs" }, [...items, ...(Math.abs(rest) > 1e-3 * most ? [row(["all other parts"], rest)] : [])]),
      ...(example ? [words(`Head ${example.layer}-${example.head} is head ${example.head} of layer ${example.layer}. Choose a head to see where it looked. What had been written there, down to the words, Python says: `, element("code", {}, [`print(${asking(asked)}.tree())`]))] : []),
    ];
  }

  /** Who wrote a part; a head leads to what it looked at there. @param {Writer} writer @param {number} position @returns {Node | string} */
  writer({ label, head }, position) {
    if (!head) return label;
    return button(label, () => this.go({ layer: head.layer, heads: [head.head], query: position, key: null, anchor: "query" }), { class: "because-way" });
  }
}

/** The sentence that stands first. @param {Example} example @param {Reason} reason @param {Asked} asked */
function mostOf({ tokens, keyTokens }, { pairs: [most], sum }, asked) {
  const against = most.score < 0 ? " This part speaks against looking there." : "";
  return element("p", { class: "sum-words because-first" }, ["The score is ", numeral("whole", sum, signed(sum, 2)), ". Its largest part is ", numeral("part", most.score, signed(most.score, 2)), ": ", ...written(most.query, named(tokens, asked.query)), ", times ", ...written(most.key, named(keyTokens, asked.key)), `.${against}`]);
}

/** What a writer wrote at a token, in words. @param {Writer} writer @param {HTMLElement} token @returns {(Node | string)[]} */
function written({ label }, token) {
  const [kind, place] = label.split(" ");
  if (kind === "head") return [`what ${label} wrote at `, token];
  if (kind === "mlp") return [`what the MLP of layer ${place} wrote at `, token];
  if (kind === "feature" && place.includes("-")) return [`${label} at `, token];
  return label.endsWith("embedding") ? [`the ${label} of `, token] : [`the ${label}`];
}

/** What the heads of the largest part had read, as far as their weights are there. @param {Example} example @param {Reason} reason @param {Asked} asked */
async function readings(example, { pairs: [most] }, asked) {
  const { text } = example.keyTokens;
  const sides = /** @type {const} */ ([["query", most.query.head], ["key", most.key.head]]);
  const found = await Promise.all(sides.map(async ([side, writer]) => {
    if (!writer || !example.layers.includes(writer.layer) || !example.heads.includes(writer.head)) return [];
    const weights = await example.head(writer.layer, writer.head);
    const row = weights.subarray(asked[side] * text.length, (asked[side] + 1) * text.length);
    return [{ side, writer, row, read: row.reduce((best, weight, key) => (weight > row[best] ? key : best), 0) }];
  }));
  const lines = found.flat().map(({ side, writer, row, read }) => {
    const many = row[read] > MOSTLY ? "read mostly " : "read several tokens, most of all ";
    const what = read === asked[side] ? ["this token itself"] : placed(example.keyTokens, read);
    return words("At ", named(example.tokens, asked[side]), `, head ${writer.layer}-${writer.head} ${many}`, ...what, ` (weight ${share(row[read])}).`);
  });
  const [one, other] = found.flat();
  return one && other && text[one.read].trim() === text[other.read].trim() ? [...lines, words("Both read the same word.")] : lines;
}

/** A token, with its position where the text has it twice. @param {Tokens} tokens @param {number} index */
function placed(tokens, index) {
  return [named(tokens, index), tokens.text.indexOf(tokens.text[index]) === tokens.text.lastIndexOf(tokens.text[index]) ? "" : ` at position ${index}`];
}

/** Why a page without a model does not say it. @param {Example} example @param {number} seen  keys that the query sees @param {Asked} asked */
function absent({ header: { why } }, seen, asked) {
  if (seen === 1) return words("This token sees only one key. So the weight is 1, whatever the score is.");
  const of = why?.heads ? ` of ${counted(why.heads.length, "head")}: ${why.heads.slice(0, 8).join(", ")}` : "";
  const held = `This page can say it for weights of at least ${share(why?.least ?? 0)}${of}. `;
  return words(held, "For this one, ask in Python: ", element("code", {}, [asking(asked)]));
}

/** @param {Asked} asked */
function asking({ layer, head, query, key }) {
  return `trace.why(${layer}, ${head}, query=${query}, key=${key})`;
}
