/**
 * The two columns of tokens: the one that looks on the left, the one looked at on the right.
 *
 * @typedef {import("./attention.js").Side} Side
 *
 * @typedef {object} Columns
 * @property {Record<Side, HTMLElement>} lists
 * @property {Record<Side, HTMLElement[]>} items
 */

import { opposite } from "./attention.js";
import { element, tokenChip } from "./dom.js";
import { percent, tokenText } from "./text.js";

/** @type {Record<Side, string>} */
const NAMES = {
  query: "Tokens that look (query)",
  key: "Tokens that are looked at (key)",
};

/**
 * @param {import("./data.js").Tokens} tokens
 * @returns {Columns}
 */
export function createColumns(tokens) {
  const query = createColumn(tokens, "query");
  const key = createColumn(tokens, "key");
  return {
    lists: { query: query.list, key: key.list },
    items: { query: query.items, key: key.items },
  };
}

/**
 * @param {import("./data.js").Tokens} tokens
 * @param {Side} side
 */
function createColumn(tokens, side) {
  const items = tokens.text.map((_, i) => {
    const names = ["token"];
    if (tokens.special[i]) names.push("special");
    if (i > 0 && tokens.segment[i] !== tokens.segment[i - 1]) names.push("second");
    const attributes = { class: names.join(" "), role: "option", "aria-selected": "false" };
    const item = element("li", attributes, [tokenChip(tokenText(tokens, i))]);
    item.tabIndex = i === 0 ? 0 : -1;
    item.dataset.side = side;
    item.dataset.index = String(i);
    return item;
  });
  const list = element("ul", { class: `column ${side}`, role: "listbox" }, items);
  list.setAttribute("aria-label", NAMES[side]);
  return { list, items };
}

/**
 * The token an event happened on.
 *
 * @param {EventTarget | null} target
 * @returns {import("./attention.js").Focus | null}
 */
export function tokenOf(target) {
  const item = target instanceof Element ? target.closest(".token") : null;
  if (!(item instanceof HTMLElement)) return null;
  const side = item.dataset.side === "key" ? "key" : "query";
  return { side, index: Number(item.dataset.index) };
}

/**
 * Marks the tokens: kept, in focus, taking part.
 *
 * @param {Columns} columns
 * @param {import("./attention.js").Shown} shown
 * @param {import("./attention.js").Focus | null} focus
 * @param {Record<Side, number | null>} kept
 */
export function markTokens(columns, shown, focus, kept) {
  for (const side of /** @type {Side[]} */ (["query", "key"])) {
    columns.items[side].forEach((item, i) => {
      item.classList.toggle("out", !shown[side][i]);
      item.classList.toggle("focus", focus?.side === side && focus.index === i);
      item.classList.toggle("kept", kept[side] === i);
      item.setAttribute("aria-selected", String(kept[side] === i));
    });
  }
}

/**
 * Writes weights beside the tokens opposite the focus.
 *
 * @param {Columns} columns
 * @param {import("./attention.js").Focus | null} focus
 * @param {Float64Array} means
 * @param {number[]} places
 */
export function writeWeights(columns, focus, means, places) {
  for (const item of [...columns.items.query, ...columns.items.key]) {
    item.querySelector(":scope > .weight")?.remove();
  }
  if (!focus) return;
  for (const i of places) {
    const weight = element("data", { class: "weight", value: String(means[i]) });
    weight.textContent = percent(means[i]);
    columns.items[opposite(focus.side)][i].append(weight);
  }
}

/**
 * Gives the keyboard's focus to a token; only it stays in the tab order of its column.
 *
 * @param {Columns} columns
 * @param {import("./attention.js").Focus} token
 */
export function focusToken(columns, { side, index }) {
  columns.items[side].forEach((item, i) => {
    item.tabIndex = i === index ? 0 : -1;
  });
  columns.items[side][index].focus();
}

/**
 * Where the tokens stand, measured on the page.
 *
 * @param {HTMLElement} between  the room between the columns
 * @param {Columns} columns
 * @returns {import("./lines.js").Geometry}
 */
export function measure(between, { items }) {
  return {
    width: between.clientWidth,
    height: between.clientHeight,
    middles: Float64Array.from(items.query, (item) => item.offsetTop + item.offsetHeight / 2),
    row: items.query[0].offsetHeight,
  };
}
