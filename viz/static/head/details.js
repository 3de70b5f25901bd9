/** The card beside the lines: one token's weights, or one weight in every head that is on. */

import { boundsOf, codeAt, opposite, weightOf } from "../data/attention.js";
import { headColor } from "../draw/colors.js";
import { facts } from "../draw/cards.js";
import { element, tokenChip } from "../draw/dom.js";
import { percent, running, tokenText } from "../draw/text.js";

/**
 * @typedef {object} Scene  what is looked at
 * @property {import("../data/data.js").Tokens} tokens  those that look
 * @property {import("../data/data.js").Tokens} keyTokens
 * @property {import("../data/example.js").Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {import("./lines.js").Look} look
 * @property {import("../data/attention.js").Focus} focus
 * @property {There | null} there
 *
 * @typedef {object} There  the same weights in the text that this one is compared with
 * @property {import("../data/example.js").Layer} layer
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
  const chip = tokenChip(tokenText(own, focus.index));
  const verb = focus.side === "query" ? " looks at" : " is looked at by";
  const color = heads.length === 1 ? headColor(look.numbers[heads[0]], look.theme) : "";
  const rows = places.map((i) =>
    bar(tokenChip(tokenText(others, i, 40)), means[i], { color, before: before?.[i] }),
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
    tokenChip(tokenText(tokens, query)),
    " looks at ",
    tokenChip(tokenText(keyTokens, key)),
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
 * A number in large, and how sure it is.
 *
 * @param {number} value
 * @param {string} text
 * @param {string} note
 */
export function large(value, text, note) {
  const big = element("data", { class: "big", value: String(value) }, [text]);
  return element("p", {}, [big, element("span", { class: "between" }, [note])]);
}

/**
 * Between which weights a rounded one lies.
 *
 * @param {number} code
 */
export function boundsText(code) {
  const [low, high] = boundsOf(code);
  const floor = (Math.floor(low * 1000) / 10).toFixed(1);
  const ceiling = (Math.ceil(high * 1000) / 10).toFixed(1);
  return `between ${floor} and ${ceiling}\u202f%`;
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
 * How far a weight is from another, in percentage points.
 *
 * @param {number} weight
 * @param {number} before
 */
function difference(weight, before) {
  const points = Math.round((weight - before) * 1000) / 10;
  if (points === 0) return "±0.0";
  return `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
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
 * @param {Node | string} name
 * @param {number} weight
 * @param {{color?: string, kind?: string, before?: number, number?: Node}} options  before: what it is
 *   compared with; number: what is written, where it is not the weight
 */
export function bar(name, weight, { color = "", kind = "", before, number }) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.min(weight, 1) * 100}%`;
  fill.style.backgroundColor = color;
  return element("li", { class: `bar ${kind}` }, [
    element("span", { class: "name" }, [name]),
    element("span", { class: "track" }, [fill]),
    number ?? element("data", { value: String(weight) }, [percent(weight)]),
    ...(before === undefined ? [] : [element("span", { class: "change" }, [difference(weight, before)])]),
  ]);
}

/**
 * The token on the side opposite the focus that was chosen too.
 *
 * @param {import("../frame/state.js").State} state
 * @param {import("../data/attention.js").Focus} focus
 */
export function counterpart(state, focus) {
  return state[focus.side] === focus.index ? state[opposite(focus.side)] : null;
}
