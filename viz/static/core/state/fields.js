/**
 * What the state of a page is made of, and how each part is written in the page's address.
 *
 * A view that needs a part of its own adds a row here.
 *
 * @typedef {object} State
 * @property {string} view  the picture that is shown
 * @property {number} example  which text
 * @property {number | null} beside  the text shown next to it
 * @property {number} layer  the layer's number in the model
 * @property {number[]} heads  numbers of the heads that are on
 * @property {number | null} query  the token kept on the side that looks
 * @property {number | null} key  the token kept on the side that is looked at
 * @property {import("../data/attention.js").Side} anchor  the side that was chosen first
 * @property {string} filter
 * @property {number} minimum  percent; weights below are not drawn
 * @property {number} top  of each token, only so many of the strongest lines; 0: all
 * @property {boolean} special  whether special tokens take part
 * @property {"auto" | "light" | "dark"} theme
 * @property {boolean} expanded  neuron view: with query, keys and products
 * @property {"dimension" | "size"} order  arithmetic view: of the products
 * @property {string} number  arithmetic view: the quantity that is worked out; empty: an attention weight
 * @property {number | null} dimension  of it: a dimension, a neuron, or a token id of the logits
 * @property {"side" | "position" | "token"} tint  of the picture of queries and keys: what colours say
 * @property {string} sort  the statistic that the model view's heads are sorted by; empty: none
 * @property {string} mark  the pattern whose heads it marks; empty: none
 * @property {import("./window.js").Window | null} window  what the map shows; null: all of it
 * @property {"root" | "linear"} scale  of the map's colours
 * @property {import("../data/shading.js").Measure} measure  what the text view shades tokens by
 * @property {string} find  the text that is searched for
 *
 * @typedef {object} Limits  what a state may hold
 * @property {string[]} views
 * @property {string} view  the one to begin with
 * @property {number} examples
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {number[]} first  those that are on to begin with
 * @property {number} size  tokens that look
 * @property {number} keys  tokens that are looked at
 * @property {number} minimum  the threshold to begin with
 * @property {boolean} pair
 * @property {string[]} named  marks of heads that were named before the page was made
 *
 * @typedef {object} Field
 * @property {keyof State} name
 * @property {string} key  its name in the address
 * @property {(limits: Limits) => any} start
 * @property {(written: string, limits: Limits, asked: URLSearchParams) => any} read  undefined:
 *   nothing that this page has
 * @property {(value: any, state: State) => string} [write]
 */

import { FILTERS, MINIMA, TOPS } from "../data/attention.js";
import { MEASURES } from "../data/shading.js";
import { STATISTICS } from "../data/statistics.js";
import { readWindow, writeWindow } from "./window.js";

/** @type {Field[]} */
export const FIELDS = [
  {
    name: "view",
    key: "view",
    start: ({ view }) => view,
    read: (written, { views }) => oneOf(written, views),
  },
  {
    name: "example",
    key: "example",
    start: () => 0,
    read: (written, { examples }) => whole(written, range(examples)),
  },
  {
    name: "beside",
    key: "beside",
    start: () => null,
    read: (written, { examples }) => whole(written, range(examples)),
  },
  {
    name: "layer",
    key: "layer",
    start: ({ layers }) => layers[0],
    read: (written, { layers }) => whole(written, layers),
  },
  {
    name: "heads",
    key: "heads",
    start: ({ first }) => first,
    read: (written, { heads }) => askedHeads(written, heads),
    write: (heads) => heads.join(".") || "none",
  },
  {
    name: "query",
    key: "query",
    start: () => null,
    read: (written, { size }) => whole(written, range(size)),
  },
  {
    name: "key",
    key: "key",
    start: () => null,
    read: (written, { keys }) => whole(written, range(keys)),
  },
  {
    name: "anchor",
    key: "from",
    start: () => "query",
    read: (written) => (written === "key" ? "key" : "query"),
  },
  {
    name: "filter",
    key: "filter",
    start: () => "all",
    read: (written, { pair }) => oneOf(written, pair ? FILTERS.map(({ id }) => id) : ["all"]),
  },
  {
    name: "minimum",
    key: "min",
    start: ({ minimum }) => minimum,
    read: (written) => (MINIMA.includes(Number(written)) ? Number(written) : undefined),
  },
  {
    name: "top",
    key: "top",
    start: () => 0,
    read: (written) => whole(written, TOPS),
  },
  {
    name: "special",
    key: "special",
    start: () => true,
    read: (written) => written !== "off",
    write: () => "off",
  },
  {
    name: "theme",
    key: "theme",
    start: () => "auto",
    read: (written) => oneOf(written, ["light", "dark"]),
  },
  {
    name: "expanded",
    key: "vectors",
    start: () => true,
    read: (written) => written !== "off",
    write: () => "off",
  },
  {
    name: "order",
    key: "order",
    start: () => "dimension",
    read: (written) => oneOf(written, ["dimension", "size"]),
  },
  {
    name: "number",
    key: "number",
    start: () => "",
    read: (written) => (/^[a-z_]{1,20}$/.test(written) ? written : undefined),
  },
  {
    name: "dimension",
    key: "dim",
    start: () => null,
    read: (written) => (/^\d{1,7}$/.test(written) ? Number(written) : undefined),
  },
  {
    name: "tint",
    key: "tint",
    start: () => "side",
    read: (written) => oneOf(written, ["side", "position", "token"]),
  },
  {
    name: "sort",
    key: "sort",
    start: () => "",
    read: (written) => oneOf(written, STATISTICS.map(({ id }) => id)),
  },
  {
    name: "mark",
    key: "mark",
    start: () => "",
    read: (written, { named }) => oneOf(written, [...STATISTICS.filter(({ mark }) => mark !== null).map(({ id }) => id), ...named]),
  },
  {
    name: "window",
    key: "window",
    start: () => null,
    read: (written, { size, keys }) => readWindow(written, { nQueries: size, nKeys: keys }),
    write: writeWindow,
  },
  {
    name: "scale",
    key: "scale",
    start: () => "root",
    read: (written) => oneOf(written, ["root", "linear"]),
  },
  {
    name: "measure",
    key: "shade",
    start: () => "received",
    read: (written) => oneOf(written, MEASURES.map(({ id }) => id)),
  },
  {
    name: "find",
    key: "find",
    start: () => "",
    read: (written) => written.slice(0, 200),
  },
];

/** @param {number} size */
function range(size) {
  return Array.from({ length: size }, (_, i) => i);
}

/**
 * @param {string} written
 * @param {number[]} possible
 */
export function whole(written, possible) {
  const number = /^\d+$/.test(written) ? Number(written) : NaN;
  return possible.includes(number) ? number : undefined;
}

/**
 * @param {string} written
 * @param {string[]} possible
 */
function oneOf(written, possible) {
  return possible.includes(written) ? written : undefined;
}

/**
 * @param {string} written
 * @param {number[]} possible
 */
function askedHeads(written, possible) {
  if (written === "none") return [];
  const numbers = written.split(".").map((part) => whole(part, possible));
  const heads = possible.filter((head) => numbers.includes(head));
  return heads.length ? heads : undefined;
}
