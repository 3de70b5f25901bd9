/**
 * The two columns of tokens: the one that looks on the left, the one looked at on the right.
 *
 * @typedef {import("../data/attention.js").Side} Side
 *
 * @typedef {object} Columns
 * @property {Record<Side, HTMLElement>} lists
 * @property {Record<Side, HTMLElement[]>} items
 * @property {Record<Side, Uint8Array>} marks  how each is marked: a bit for each of MARKS
 * @property {Record<Side, string[]>} bands  how each is shaded
 * @property {HTMLElement[]} written  the weights that stand beside them
 */

import { opposite } from "../data/attention.js";
import { element, tokenChip } from "../draw/dom.js";
import { percent, tokenText } from "../draw/text.js";

/** @type {Record<Side, string>} */
const NAMES = {
  query: "Tokens that look (query)",
  key: "Tokens that are looked at (key)",
};

/** Classes of a token, a bit of its mark each. */
const MARKS = ["out", "focus", "kept", "found"];

/** From this many tokens on, each is one element: two texts of 512 tokens are 2,048. */
const PLAIN = 256;

/**
 * @param {import("../data/data.js").Tokens} tokens  those that look
 * @param {import("../data/data.js").Tokens} keyTokens
 * @param {[string, string]} names  of both sides, where they are other texts
 * @returns {Columns}
 */
export function createColumns(tokens, keyTokens, names) {
  const query = createColumn(tokens, "query", names[0]);
  const key = createColumn(keyTokens, "key", names[1]);
  return {
    lists: { query: query.list, key: key.list },
    items: { query: query.items, key: key.items },
    marks: { query: new Uint8Array(query.items.length), key: new Uint8Array(key.items.length) },
    bands: { query: query.items.map(() => ""), key: key.items.map(() => "") },
    written: [],
  };
}

/**
 * @param {import("../data/data.js").Tokens} tokens
 * @param {Side} side
 * @param {string} name
 */
function createColumn(tokens, side, name) {
  const plain = tokens.text.length > PLAIN;
  const items = tokens.text.map((_, i) => {
    const names = plain ? ["token", "plain"] : ["token"];
    if (tokens.special[i]) names.push("special");
    if (i > 0 && tokens.segment[i] !== tokens.segment[i - 1]) names.push("second");
    const attributes = { class: names.join(" "), role: "option", "aria-selected": "false" };
    const { mark, text } = tokenText(tokens, i);
    const item = element("li", attributes, [plain ? mark + text : tokenChip({ mark, text })]);
    item.tabIndex = i === 0 ? 0 : -1;
    item.dataset.side = side;
    item.dataset.index = String(i);
    return item;
  });
  const list = element("ul", { class: `column ${side}`, role: "listbox" }, items);
  list.setAttribute("aria-label", name ? `${NAMES[side]}: ${name}` : NAMES[side]);
  return { list, items };
}

/**
 * The token an event happened on.
 *
 * @param {EventTarget | null} target
 * @returns {import("../data/attention.js").Focus | null}
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
 * @param {import("../data/attention.js").Shown} shown
 * @param {import("../data/attention.js").Focus | null} focus
 * @param {Record<Side, number | null>} kept
 * @param {Record<Side, Set<number>>} found  what is searched for
 */
export function markTokens(columns, shown, focus, kept, found) {
  for (const side of /** @type {Side[]} */ (["query", "key"])) {
    const marks = columns.marks[side];
    const focused = focus?.side === side ? focus.index : -1;
    columns.items[side].forEach((item, i) => {
      const bits = [!shown[side][i], focused === i, kept[side] === i, found[side].has(i)];
      const mark = bits.reduce((sum, is, bit) => sum + (Number(is) << bit), 0);
      if (mark === marks[i]) return;
      marks[i] = mark;
      MARKS.forEach((name, bit) => item.classList.toggle(name, Boolean(mark & (1 << bit))));
      item.setAttribute("aria-selected", String(kept[side] === i));
    });
  }
}

/**
 * Writes weights beside the tokens opposite the focus.
 *
 * @param {Columns} columns
 * @param {import("../data/attention.js").Focus | null} focus
 * @param {Float64Array} means
 * @param {number[]} places
 */
export function writeWeights(columns, focus, means, places) {
  for (const weight of columns.written) weight.remove();
  columns.written = [];
  if (!focus) return;
  for (const i of places) {
    const weight = element("data", { class: "weight", value: String(means[i]) }, [percent(means[i])]);
    const item = columns.items[opposite(focus.side)][i];
    // Towards the lines stands the token.
    if (focus.side === "key" && item.classList.contains("plain")) item.prepend(weight);
    else item.append(weight);
    columns.written.push(weight);
  }
}

/**
 * Gives the keyboard's focus to a token; only it stays in the tab order of its column.
 *
 * @param {Columns} columns
 * @param {import("../data/attention.js").Focus} token
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
  const middle = (/** @type {HTMLElement} */ item) => item.offsetTop + item.offsetHeight / 2;
  return {
    width: between.clientWidth,
    height: between.clientHeight,
    middles: { query: Float64Array.from(items.query, middle), key: Float64Array.from(items.key, middle) },
    row: items.query[0].offsetHeight,
  };
}
