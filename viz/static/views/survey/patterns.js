/** The table of patterns: which heads are known by each, how surely, and where to see it. */

import { button } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { counted } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";

/** Heads of a pattern that have a row each. */
const SHOWN = 8;

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 */
export function createPatterns(survey, store) {
  const { patterns } = survey.header;
  if (!patterns.length) return null;
  const rows = patterns.flatMap((pattern) => rowsOf(survey, store, pattern));
  const titles = ["Looks at", "Head", "Score", "95\u202f% interval", "Without it", "Examples"];
  const head = element("thead", {}, [element("tr", {}, titles.map((title) => element("th", { scope: "col" }, [title])))]);
  const table = element("table", { class: "patterns" }, [head, ...rows]);
  const note = element("p", { class: "note" }, [
    "A head in bold is known by the pattern: its whole interval is above the middle between “Without it” and 100\u202f%. For all words alike it is enough to be above “Without it”.",
  ]);
  return element("section", { class: "part", "aria-labelledby": "patterns" }, [
    element("h2", { id: "patterns" }, ["What heads are known by"]),
    element("p", { class: "seen" }, [patternsSaid(survey)]),
    table,
    note,
  ]);
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 * @param {import("./data.js").Pattern} pattern
 */
function rowsOf(survey, store, pattern) {
  const name = element("th", { scope: "rowgroup" }, [running(pattern.words)]);
  name.title = running(pattern.source);
  const rows = pattern.heads.slice(0, SHOWN).map((head) => cellsOf(survey, store, pattern, head));
  const others = pattern.heads.slice(SHOWN).map(({ place }) => toHead(survey, store, place));
  if (others.length) rows.push([across([`and ${others.length} more: `, ...others])]);
  if (!rows.length) rows.push([across(["not measured: no token sees such another"])]);
  name.rowSpan = rows.length;
  return [element("tbody", {}, rows.map((cells, i) => element("tr", {}, i ? cells : [name, ...cells])))];
}

/**
 * A cell below all titles but the first.
 *
 * @param {(Node | string)[]} children
 */
function across(children) {
  const made = element("td", { class: "across" }, children);
  made.colSpan = 5;
  return made;
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 * @param {number} place
 */
function toHead(survey, store, place) {
  return button(survey.nameOf(place), () => store.set({ place }), { class: "to-head", title: "Show this head in all figures" });
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 * @param {import("./data.js").Pattern} pattern
 * @param {import("./data.js").PatternHead} head
 */
function cellsOf(survey, store, { score, low, high, baseline }, { place, named, examples }) {
  const of = (/** @type {number | null} */ value) => (value === null ? "–" : percent(value));
  const chosen = toHead(survey, store, place);
  const cell = (/** @type {string} */ title, /** @type {(Node | string)[]} */ children) => element("td", { "data-title": title }, children);
  const interval = low[place] === null ? "–" : `${of(low[place])} to ${of(high[place])}`;
  const items = examples.map((one) => element("li", {}, [exampleOf(survey, place, one)]));
  return [
    cell("Head", [named ? element("strong", {}, [chosen]) : chosen]),
    cell("Score", [of(score[place])]),
    cell("95\u202f% interval", [interval]),
    cell("Without it", [of(baseline[place])]),
    cell("Examples", items.length ? [element("ul", {}, items)] : ["–"]),
  ];
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {number} place
 * @param {import("./data.js").PatternExample} example
 */
function exampleOf(survey, place, example) {
  const token = (/** @type {string} */ text) => element("bdi", {}, [visible(text.trim() || text, 24)]);
  const document = running(survey.header.documents[example.document]);
  const { query_token: query, key_token: key } = example;
  const shown = query === null || key === null ? [element("bdi", {}, [document])] : [token(query), " → ", token(key)];
  const href = survey.linkTo(example.document, place, example);
  const made = href ? element("a", { href, title: document }, shown) : element("span", { title: document }, shown);
  return element("span", {}, [made, ` ${percent(example.score)}`]);
}

/** @param {import("./data.js").Survey} survey */
function patternsSaid({ header: { patterns }, size }) {
  const named = new Set(patterns.flatMap(({ heads }) => heads.filter((one) => one.named).map(({ place }) => place)));
  const counts = patterns.map(({ words, heads }) => ({ words, count: heads.filter((one) => one.named).length }));
  const most = counts.reduce((best, one) => (one.count > best.count ? one : best));
  const ending = most.count ? ` Most of them, ${most.count}, look at ${running(most.words)}.` : "";
  // Of any two tokens one stands before the other; other patterns have rows in few texts, or are measured on drawn ones.
  const documents = Math.max(...patterns.filter(({ name }) => name === "previous").map((one) => one.documents));
  return `Over ${counted(documents, "document")}, ${named.size} of ${size} heads are known by one of ${patterns.length} patterns.${ending}`;
}
