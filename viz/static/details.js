/** The card beside the lines: one token's weights, or one weight in every head that is on. */

import { boundsOf, codeAt, opposite, weightOf } from "./attention.js";
import { headColor } from "./colors.js";
import { element, tokenChip } from "./dom.js";
import { percent, tokenText } from "./text.js";

/**
 * @typedef {object} Scene  what is looked at
 * @property {import("./data.js").Tokens} tokens
 * @property {import("./example.js").Layer} layer
 * @property {number[]} heads  places in the head axis
 * @property {import("./lines.js").Look} look
 * @property {import("./attention.js").Focus} focus
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
 */
export function showToken(card, { tokens, layer, heads, look, focus }, means, places) {
  card.dataset.shows = "token";
  const chip = tokenChip(tokenText(tokens, focus.index));
  const verb = focus.side === "query" ? " looks at" : " is looked at by";
  const color = heads.length === 1 ? headColor(look.numbers[heads[0]], look.theme) : "";
  const rows = places.map((i) => bar(tokenChip(tokenText(tokens, i, 40)), means[i], color));
  if (focus.side === "query" && places.length) {
    const all = means.reduce((sum, weight) => sum + weight, 0);
    const listed = places.reduce((sum, i) => sum + means[i], 0);
    rows.push(bar("other tokens", Math.max(all - listed, 0), color, "rest"));
  }
  card.replaceChildren(
    element("p", { class: "where" }, [where(layer.number, heads, look)]),
    element("h2", {}, [chip, verb]),
    rows.length ? element("ul", { class: "bars" }, rows) : nothing(heads),
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
export function showWeight(card, { tokens, layer, heads, look, focus }, other) {
  card.dataset.shows = "weight";
  const [query, key] = focus.side === "query" ? [focus.index, other] : [other, focus.index];
  const codes = heads.map((head) => codeAt(layer, head, focus, other));
  const title = element("h2", {}, [
    tokenChip(tokenText(tokens, query)),
    " looks at ",
    tokenChip(tokenText(tokens, key)),
  ]);
  const one = heads.length === 1;
  card.replaceChildren(
    element("p", { class: "where" }, [
      one ? `Layer ${layer.number}, head ${look.numbers[heads[0]]}` : `Layer ${layer.number}`,
    ]),
    title,
    one ? single(codes[0]) : perHead(heads, codes, look),
    facts([
      ["query", `token ${query}`],
      ["key", `token ${key}`],
      ["probability", "rounded to 0.4\u202f%"],
    ]),
  );
}

/** @param {number} code */
function single(code) {
  const weight = weightOf(code);
  const [low, high] = boundsOf(code);
  const floor = (Math.floor(low * 1000) / 10).toFixed(1);
  const ceiling = (Math.ceil(high * 1000) / 10).toFixed(1);
  const big = element("data", { class: "big", value: String(weight) }, [percent(weight)]);
  return element("p", {}, [
    big,
    element("span", { class: "between" }, [`between ${floor} and ${ceiling}\u202f%`]),
  ]);
}

/**
 * @param {number[]} heads
 * @param {number[]} codes
 * @param {import("./lines.js").Look} look
 */
function perHead(heads, codes, look) {
  if (!heads.length) return nothing(heads);
  const rows = heads.map((head, i) => {
    const number = look.numbers[head];
    return bar(`head ${number}`, weightOf(codes[i]), headColor(number, look.theme));
  });
  return element("ul", { class: "bars heads" }, rows);
}

/** @param {[string, string][]} pairs */
function facts(pairs) {
  const rows = pairs.flatMap(([name, value]) => [
    element("dt", {}, [name]),
    element("dd", {}, [value]),
  ]);
  return element("dl", { class: "facts" }, rows);
}

/**
 * @param {Node | string} name
 * @param {number} weight
 * @param {string} color
 * @param {string} [kind]
 */
function bar(name, weight, color, kind = "") {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.min(weight, 1) * 100}%`;
  if (color) fill.style.backgroundColor = color;
  return element("li", { class: `bar ${kind}` }, [
    element("span", { class: "name" }, [name]),
    element("span", { class: "track" }, [fill]),
    element("data", { value: String(weight) }, [percent(weight)]),
  ]);
}

/**
 * The token on the side opposite the focus that was chosen too.
 *
 * @param {import("./state.js").State} state
 * @param {import("./attention.js").Focus} focus
 */
export function counterpart(state, focus) {
  return state[focus.side] === focus.index ? state[opposite(focus.side)] : null;
}
