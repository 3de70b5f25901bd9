/**
 * Why the head looks there: the largest parts of the score, and what the heads that wrote them had read.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Asked, Pair, Part, Reason, Writer } from "../../core/data/reasons.js"
 * @import { Story } from "./weight.js"
 * @import { Body } from "./elements.js"
 * @import { Step, Way } from "./steps.js"
 */

import { featuresOf, reasonOf } from "../../core/data/reasons.js";
import { sees } from "../../core/data/softmax.js";
import { signColor } from "../../core/draw/colors.js";
import { button, segments } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { counted, share, signed, written } from "../../core/text/numbers.js";
import { translated } from "../../core/text/translated.js";
import { numeral, track } from "../../marks/cards.js";
import { folded, lineOf, named, sumTables, unfolding, words } from "./elements.js";
import { dimensionName, products, sumStep, total } from "./steps.js";

/** Parts that are listed, and the share of the largest that they have at least. */
const [LISTED, LEAST] = [4, 0.01];
/** A head that gives a token more than this has read mostly that one. */
const MOSTLY = 0.5;

const WAYS = [
  { id: "parts", label: "By heads and MLPs" },
  { id: "features", label: "By features" },
];
const SAME = "the same for every key";
const HOW = "A feature is a direction that a sparse autoencoder found, times how strongly the token has it: feature 1-128 is number 128 of layer 1. The feature bias is the same for every token, and the feature error is what no feature explains.";

export class Because {
  /** @param {(way: Way) => void} go @param {(change: Way) => void} set */
  constructor(go, set) {
    this.go = go;
    this.said = element("div", { class: "because-said", "aria-live": "polite" });
    this.by = segments(WAYS, (split) => set({ split }), "What the score is split into");
    const parts = folded("Why does it look there?", "", [this.by.root, this.said], () => set({ level: "why" }));
    this.root = element("div", { role: "group", class: "because", "aria-label": "Why the head looks there", "data-step": "why" }, parts);
    this.latest = 0;
    this.theme = /** @type {"light" | "dark"} */ ("light");
    this.told = /** @type {Step[]} */ ([]);
  }

  /** @param {Story} story @param {Asked} asked @param {string} by  the way that is chosen @param {"light" | "dark"} theme */
  async show(story, asked, by, theme) {
    const { example, vectors, row } = story;
    this.theme = theme;
    this.told = [];
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
    const parts = reason ? [...(await readings(example, reason, asked)), ...this.bars(story, reason, asked), ...split] : [];
    // Another pair may have been asked for while this one was computed.
    if (mine !== this.latest) return;
    const score = row.scores[asked.key];
    // What a page holds was compared when it was made.
    const adds = !example.source || (reason && Math.abs(reason.sum - score) <= 0.01 * Math.max(1, Math.abs(reason.pairs[0].score), Math.abs(score)));
    const masked = sees(row, asked.key) ? [] : [words("It may not look there: the score is masked, and its weight is 0.")];
    const edited = words("An edit wrote the stream, a query, a key or the scores themselves, so this score is not the sum of what heads and MLPs wrote.");
    if (reason && adds) this.told = [{ ...sumStep("why", "why", "", [...reason.pairs.map(({ query, key, score: value }) => ({ name: `${query.label} × ${key.label}`, factors: [], value })), ...(reason.same ? [{ name: SAME, factors: [], value: reason.same }] : [])]), value: reason.sum }];
    this.said.replaceChildren(...masked, ...(reason ? (adds ? [mostOf(example, reason, asked), ...parts] : [edited]) : [absent(example, row.end - row.first, asked)]));
    this.root.dataset.drawn = "true";
  }

  /** @param {Story} story @param {Reason} reason @param {Asked} asked */
  bars(story, { pairs, same, sum }, asked) {
    const { tokens, keyTokens } = story.example;
    const items = pairs.map((pair) => ({ name: element("span", {}, [titled(pair.query), " × ", titled(pair.key)]), score: pair.score, body: pair.query.numbers && (() => this.behind(story, pair, asked)) }));
    const shown = pairs.slice(0, LISTED).flatMap(({ query, key }) => [query, key]);
    const mlp = shown.find(({ label }) => label.startsWith("mlp ") && !label.includes("bias"));
    const said = mlp ? `“${mlp.label}” is the MLP of layer ${mlp.label.slice(4)}, the layer’s other half. ` : "";
    const equal = Math.abs(same) > 1e-3 * Math.abs(pairs[0].score) ? `“The same for every key” is what biases give to all keys alike: the softmax cancels it, so it cannot say why this one wins. ` : "";
    const down = shown.some(({ head }) => head) ? "what its heads had read, down to the words, and its" : translated`its`;
    const python = ["What had been read there, down to the words, Python says: ", element("code", {}, [`print(${asking(asked)}.tree())`]), ", or a page that was made with ", element("code", {}, [`why=(${asked.layer}, ${asked.head})`]), "."];
    return [
      words(...lead(story, asked)),
      this.list("pair", items, sum, "all other pairs", same),
      unfolding(["How to read this"], async () => [words("Each part: something that was written at ", named(tokens, asked.query), " × something that was written at ", named(keyTokens, asked.key), ". Blue speaks for looking there, orange against. All parts together are the score. ", said, equal, ...(items[0].body ? [`Open a part to see ${down} product, number by number.`] : python))]),
    ];
  }

  /** @param {string} kind @param {{name: Node | string, score: number, body: Body | null}[]} items  the largest first @param {number} whole @param {string} others  the name of those that are not listed @param {number} same  for every key */
  list(kind, items, whole, others, same = 0) {
    const shown = items.slice(0, LISTED).filter(({ score }) => Math.abs(score) >= LEAST * Math.abs(items[0].score));
    const rest = { name: others, score: whole - same - total(shown.map(({ score }) => score)), body: null };
    const most = Math.max(...[shown[0], rest, { score: same }].map(({ score }) => Math.abs(score)));
    const last = [rest, { name: SAME, score: same, body: null }].filter(({ score }) => Math.abs(score) > 1e-3 * most);
    const rows = [...shown, ...last].map(({ name, score, body }) => {
      const line = [element("span", { class: "because-name" }, [name]), track(Math.abs(score) / most, name === SAME ? "" : signColor(score, this.theme)), numeral(kind, score, signed(score, 2))];
      return element("li", {}, [body ? unfolding(line, body, "because-line") : element("div", { class: "because-line" }, line)]);
    });
    return element("ul", { class: "because-pairs" }, rows);
  }

  /** What the heads of a pair had read, and its product. @param {Story} story @param {Pair} pair @param {Asked} asked @returns {Promise<Node[]>} */
  async behind({ example, vectors: { scale } }, { query, key, score }, asked) {
    const read = await Promise.all([this.read(example, { ...query, score }, asked.query), this.read(example, { ...key, score }, asked.key)]);
    const terms = products(query.numbers ?? [], key.numbers ?? [], dimensionName);
    const sum = total(terms.map(({ value }) => value));
    const says = words(`The product of the two parts, as a query q and a key k, number by number; times ${written(scale)}, the scale of every score, it is the part:`);
    return [...read.flat(), says, ...sumTables({ factors: ["q", "k"], terms }, { theme: this.theme, go: this.go }), lineOf(["_part_ = ", sum, " × ", scale, " = ", sum * scale])];
  }

  /** What a head had read for a part that it wrote, by token. @param {Example} example @param {Part} part @param {number} position @returns {Promise<Node[]>} */
  async read(example, { label, head, score, open }, position) {
    if (!head || !open) return [];
    const way = button(label, () => this.go({ layer: head.layer, heads: [head.head], query: position, key: null, anchor: "query" }), { class: "sum-to" });
    const says = words("Which words did ", way, " take this from?");
    const weights = await rowOf(example, head, position);
    return [says, ...this.level(example, await open(), score, position, weights)];
  }

  /** Parts of a part: tokens, or what had been written at one. @param {Example} example @param {Part[]} parts @param {number} whole @param {number} position @param {ArrayLike<number> | null} [weights]  of the tokens */
  level(example, parts, whole, position, weights) {
    // What a page holds was compared when it was made.
    if (example.source && Math.abs(total(parts.map(({ score }) => score)) - whole) > 0.01 * Math.max(Math.abs(whole), Math.abs(parts[0].score))) return [words("An edit wrote the output of this head, so it is not the sum of what the head read.")];
    const items = parts.map((part) => {
      const { label, token, score, open } = part;
      if (token === undefined) return { name: label, score, body: open && (() => this.read(example, part, position)) };
      const weight = weights ? ` (weight ${share(weights[token])})` : "";
      return { name: element("span", {}, [...placed(example.keyTokens, token), weight]), score, body: open && (async () => this.level(example, await open(), score, token)) };
    });
    return [this.list("read", items, whole, parts[0].token === undefined ? "all else at this word" : "all other words")];
  }
}

/** The sentence that stands first. @param {Example} example @param {Reason} reason @param {Asked} asked */
function mostOf({ tokens, keyTokens }, { pairs: [{ query, key, score }], sum }, asked) {
  const part = numeral("part", score, signed(score, 2));
  const says = score < 0 ? [" Its largest part, ", part, ", speaks against looking there: "] : score <= sum ? [" ", part, " of it is one match: "] : [" Its largest part, ", part, ", is one match: "];
  // A head's number is explained where it stands first.
  const again = query.label === key.label || Boolean(query.head);
  return element("p", { class: "sum-words because-first" }, ["The score is ", numeral("whole", sum, signed(sum, 2)), ".", ...says, ...wrote(query, named(tokens, asked.query), true), score < 0 ? " does not fit " : " fits ", ...wrote(key, named(keyTokens, asked.key), !again), "."]);
}

/** What decides: the score beside the largest of the other keys. @param {Story} story @param {Asked} asked @returns {(Node | string)[]} */
function lead({ example, row }, { key }) {
  const others = Array.from(row.scores.keys()).filter((i) => i !== key && sees(row, i));
  if (!others.length || !sees(row, key)) return [];
  const next = others.reduce((best, i) => (row.scores[i] > row.scores[best] ? i : best));
  const first = row.scores[key] >= row.scores[next];
  return [`Only the lead over the other keys counts: ${signed(row.scores[key], 2)} here, ${first ? "next is " : "largest is "}`, ...placed(example.keyTokens, next), ` with ${signed(row.scores[next], 2)}.`];
}

/** What writers are that a name does not say. @param {string} label */
function gloss(label) {
  const [kind, place] = label.split(" ");
  const layer = /(\d+)$/.exec(label)?.[0];
  if (kind === "head") return `layer ${place.split("-")[0]}, head ${place.split("-")[1]}`;
  if (/^(query|key) bias$/.test(label)) return `added to every ${kind} of this head`;
  if (label.includes("norm bias")) return `added to every token by a norm${layer ? ` of layer ${layer}` : ""}`;
  if (kind === "attention") return `added to every token by the attention of layer ${layer}`;
  return kind === "mlp" ? `the MLP of layer ${layer}, the layer’s other half` : "";
}

/** @param {Writer} writer */
function titled({ label }) {
  return element("span", gloss(label) ? { title: gloss(label) } : {}, [label]);
}

/** What a writer wrote at a token, in words. @param {Writer} writer @param {HTMLElement} token @param {boolean} explained @returns {(Node | string)[]} */
function wrote({ label }, token, explained) {
  const [kind, place] = label.split(" ");
  const note = explained && gloss(label) ? ` (${gloss(label)})` : "";
  if (kind === "head") return [`what ${label}${note} wrote at `, token];
  if (/^mlp \d+$/.test(label)) return [`what the MLP of layer ${place} wrote at `, token];
  if (kind === "feature" && place.includes("-")) return [`${label} at `, token];
  return label.endsWith("embedding") ? [`the ${label} of `, token] : [`the ${label}${note}`];
}

/** What the heads of the largest part had read, as far as their weights are there. @param {Example} example @param {Reason} reason @param {Asked} asked */
async function readings(example, { pairs: [most] }, asked) {
  const { text } = example.keyTokens;
  const sides = /** @type {const} */ ([["query", most.query.head], ["key", most.key.head]]);
  const found = await Promise.all(sides.map(async ([side, writer]) => {
    const row = writer && (await rowOf(example, writer, asked[side]));
    if (!row) return [];
    return [{ side, writer, row, read: row.reduce((best, weight, key) => (weight > row[best] ? key : best), 0) }];
  }));
  const lines = found.flat().map(({ side, writer, row, read }) => {
    const many = row[read] > MOSTLY ? "read mostly " : "read several tokens, most of all ";
    const what = read === asked[side] ? ["this token itself"] : placed(example.keyTokens, read);
    return words("At ", named(example.tokens, asked[side]), `, head ${writer.layer}-${writer.head} ${many}`, ...what, ` (weight ${share(row[read])}).`);
  });
  const [one, other] = found.flat();
  const match = one && other && most.score > 0 && Math.min(one.row[one.read], other.row[other.read]) > MOSTLY && text[one.read].trim() === text[other.read].trim();
  if (!match || one.read === other.read) return lines;
  const finds = other.read === asked.key - 1 && one.read === asked.query ? ["finds what came after an earlier ", named(example.keyTokens, other.read)] : ["finds a token where ", named(example.keyTokens, other.read), " had been read"];
  return [...lines, words("Both read the same word, at two places: by this part the head ", ...finds, ".")];
}

/** The weights of a head at a position, where the page has them. @param {Example} example @param {{layer: number, head: number}} head @param {number} position */
async function rowOf(example, { layer, head }, position) {
  const { length } = example.keyTokens.text;
  if (!example.layers.includes(layer) || !example.heads.includes(head)) return null;
  return (await example.head(layer, head)).subarray(position * length, (position + 1) * length);
}

/** A token, with its position where the text has it twice. @param {Tokens} tokens @param {number} index */
function placed(tokens, index) {
  return [named(tokens, index), tokens.text.indexOf(tokens.text[index]) === tokens.text.lastIndexOf(tokens.text[index]) ? "" : ` at position ${index}`];
}

/** Why a page without a model does not say it. @param {Example} example @param {number} seen  keys that the query sees @param {Asked} asked */
function absent({ header: { why } }, seen, asked) {
  if (seen === 1) return words("This token sees only one key. So the weight is 1, whatever the score is.");
  const of = why?.heads ? ` of ${counted(why.heads.length, "1 head", " heads")}: ${why.heads.slice(0, 8).join(", ")}` : "";
  const held = `This page can say it for weights of at least ${share(why?.least ?? 0)}${of}. `;
  return words(held, "For this one, ask in Python: ", element("code", {}, [asking(asked)]));
}

/** @param {Asked} asked */
function asking({ layer, head, query, key }) {
  return `trace.why(${layer}, ${head}, query=${query}, key=${key})`;
}
