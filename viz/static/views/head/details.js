/** The card beside the lines: one token's weights, or one weight in every head that is on. */

import { codeAt, opposite, weightOf } from "../../core/data/attention.js";
import { headColor } from "../../core/draw/colors.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { percent, running } from "../../core/text/text.js";
import { bar, boundsText, difference, large } from "../../marks/bars.js";
import { facts } from "../../marks/cards.js";

/**
 * @typedef {object} Scene  what is looked at
 * @property {import("../../core/data/data.js").Tokens} tokens  those that look
 * @property {import("../../core/data/data.js").Tokens} keyTokens
 * @property {import("../../core/data/example.js").Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {import("./lines.js").Look} look
 * @property {import("../../core/data/attention.js").Focus} focus
 * @property {There | null} there
 *
 * @typedef {object} There  the same weights in the text that this one is compared with
 * @property {import("../../core/data/example.js").Layer} layer
 * @property {number[]} heads  places in its head axis
 * @property {string} name
 */

/**
 * @param {HTMLElement} card
 */
export function showHint(card) {
  card.dataset.shows = "hint";
  card.replaceChildren(
    element("p", { class: "hint" }, ["Point at a token to see its weights alone. Click it to keep them."]),
  );
}

/**
 * @param {HTMLElement} card
 * @param {Scene} scene
 * @param {Float64Array} means
 * @param {number[]} places  the largest of them
 * @param {Float64Array | null} before  the means of what this one is compared with
 */
export function showToken(card, { tokens, keyTokens, layer, heads, look, focus, there }, means, places, before) {
  card.dataset.shows = "token";
  const [own, others] = focus.side === "query" ? [tokens, keyTokens] : [keyTokens, tokens];
  const chip = tokenChip(own, focus.index);
  const verb = focus.side === "query" ? " looks at" : " is looked at by";
  const color = heads.length === 1 ? headColor(look.numbers[heads[0]], look.theme) : "";
  const rows = places.map((i) =>
    bar(tokenChip(others, i, 40), means[i], { color, before: before?.[i] }),
  );
  if (focus.side === "query" && places.length) {
    const all = means.reduce((sum, weight) => sum + weight, 0);
    const listed = places.reduce((sum, i) => sum + means[i], 0);
    rows.push(bar("other tokens", Math.max(all - listed, 0), { color, kind: "rest" }));
  }
  card.replaceChildren(
    element("p", { class: "where" }, [`${where(layer.number, heads, look)}, rounded to 0.4\u202f%`]),
    element("h2", {}, [chip, verb]),
    rows.length ? bars(rows, there) : nothing(heads),
  );
}

/** @param {number[]} heads */
function nothing(heads) {
  const reason = heads.length ? "No weight that is shown here." : "No head is switched on.";
  return element("p", { class: "hint" }, [reason]);
}

/**
 * @param {number} layer
 * @param {number[]} heads
 * @param {import("./lines.js").Look} look
 */
function where(layer, heads, look) {
  if (heads.length === 1) return `Layer ${layer}, head ${look.numbers[heads[0]]}`;
  return `Layer ${layer}, mean of ${heads.length} heads`;
}

/**
 * @param {HTMLElement} card
 * @param {Scene} scene
 * @param {number} other  the token opposite the focus
 */
export function showWeight(card, { tokens, keyTokens, layer, heads, look, focus, there }, other) {
  card.dataset.shows = "weight";
  const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
  const codes = heads.map((head) => codeAt(layer, head, focus, other));
  const title = element("h2", {}, [
    tokenChip(tokens, query),
    " looks at ",
    tokenChip(keyTokens, key),
  ]);
  const before = there && there.heads.map((head) => weightOf(codeAt(there.layer, head, focus, other)));
  const one = heads.length === 1;
  card.replaceChildren(
    element("p", { class: "where" }, [one ? where(layer.number, heads, look) : `Layer ${layer.number}`]),
    title,
    one ? single(codes[0]) : perHead(heads, codes, look, there, before),
    facts([
      ...(one && there && before ? comparison(weightOf(codes[0]), there, before[0]) : []),
      ["query", `token ${query}`],
      ["key", `token ${key}`],
      ["probability", "rounded to 0.4\u202f%"],
    ]),
  );
}

/** @param {number} code */
function single(code) {
  const weight = weightOf(code);
  return large(weight, percent(weight), boundsText(code));
}

/**
 * @param {number} weight
 * @param {There} there
 * @param {number} before
 * @returns {[string, string][]}
 */
function comparison(weight, there, before) {
  return [
    [nameOf(there), percent(before)],
    ["difference", `${difference(weight, before)} points`],
  ];
}

/** @param {There} there */
function nameOf({ name }) {
  return name ? running(name) : "the first";
}

/**
 * @param {number[]} heads
 * @param {number[]} codes
 * @param {import("./lines.js").Look} look
 * @param {There | null} there
 * @param {number[] | null} before
 */
function perHead(heads, codes, look, there, before) {
  if (!heads.length) return nothing(heads);
  const rows = heads.map((head, i) => {
    const number = look.numbers[head];
    const color = headColor(number, look.theme);
    return bar(`head ${number}`, weightOf(codes[i]), { color, before: before?.[i] });
  });
  return bars(rows, there, "heads");
}

/**
 * @param {HTMLElement[]} rows
 * @param {There | null} there
 * @param {string} [kind]
 */
function bars(rows, there, kind = "") {
  const list = element("ul", { class: `bars ${kind}${there ? " compared" : ""}` }, rows);
  if (!there) return list;
  const note = element("p", { class: "where" }, ["± points from ", element("bdi", {}, [nameOf(there)])]);
  return element("div", {}, [note, list]);
}

/**
 * The token on the side opposite the focus that was chosen too.
 *
 * @param {import("../../core/state/state.js").State} state
 * @param {import("../../core/data/attention.js").Focus} focus
 */
export function counterpart(state, focus) {
  return state[focus.side] === focus.index ? state[opposite(focus.side)] : null;
}
