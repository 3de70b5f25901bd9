/**
 * Worked numbers as elements: what it all comes to, and each step with its sum and its formulas.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Place, Step, Term, Way, Worked } from "./worked.js"
 */

import { element } from "../../core/draw/dom.js";
import { signColor } from "../../core/draw/colors.js";
import { signed, written } from "../../core/text/numbers.js";
import { visible } from "../../core/text/text.js";
import { numeral, track } from "../../marks/cards.js";
import { formula, named, step, words } from "./parts.js";
import { largest } from "./worked.js";

/**
 * @typedef {(way: Way) => void} Go
 *
 * @typedef {Place & {tokens: Tokens,
 *   name: string | null}} Where  name: of a token of the vocabulary
 */

/** Terms of a sum that are listed. */
const LISTED = 8;
/** A part of a number that rounding in single precision cannot explain. */
const APART = 1e-3;

/**
 * @param {Worked} quantity
 * @param {Where} where
 * @param {number} value
 * @param {number | null} given  what the model has there
 */
export function answerOf(quantity, { tokens, layer, head, position, dimension, name }, value, given) {
  const place = [...(quantity.layered ? [`Layer ${layer}`] : []), ...(quantity.headed ? [`head ${head}`] : []), quantity.says];
  const which = name === null ? `, ${quantity.of === "mlp" ? "neuron" : "dimension"} ${dimension}` : ` for “${visible(name.trim(), 24)}”`;
  const parts = [
    element("p", { class: "where" }, [place.join(", ")]),
    element("h2", { class: "sum-title" }, [`${quantity.label} of `, named(tokens, position), `${which}: `, numeral("answer", value)]),
  ];
  if (given !== null && Math.abs(given - value) > APART * Math.max(Math.abs(given), Math.abs(value), 0.01)) {
    const note = element("p", { class: "sum-edited" }, ["This run was changed here: the model goes on with ", numeral("given", given), ". Below is what it would have computed."]);
    parts.push(note);
  }
  return parts;
}

/**
 * @param {Step} told
 * @param {"light" | "dark"} theme
 * @param {Go} go
 */
export function stepOf({ id, title, says, sum, lines, value }, theme, go) {
  const shown = lines.map(lineOf);
  const made = step(id, title, [words(says), ...(sum ? [sumTable(sum, theme, go)] : []), ...shown]);
  if (Number.isFinite(value)) made.dataset.value = String(value);
  return made;
}

/**
 * A line of a formula; the number that it ends with is what it comes to.
 *
 * @param {(string | number)[]} line
 */
function lineOf(line) {
  const parts = line.map((part, i) => {
    if (typeof part === "string") return part;
    const before = line[i - 1];
    const inner = part < 0 && typeof before === "string" && /[+−×/] $/.test(before);
    return numeral("number", part, inner ? `(${written(part)})` : written(part));
  });
  const made = formula(...parts);
  made.classList.toggle("every-plain", typeof line[line.length - 1] === "string");
  return made;
}

/**
 * The largest terms of a sum, the rest added up, and the sum.
 *
 * @param {{factors: string[], terms: Term[]}} sum
 * @param {"light" | "dark"} theme
 * @param {Go} go
 */
function sumTable({ factors, terms }, theme, go) {
  const { shown, rest } = largest(terms, LISTED);
  const top = Math.max(...[...shown, ...(rest ? [rest] : [])].map(({ value }) => Math.abs(value))) || 1;
  const columns = ["", ...factors, factors.length ? factors.join(" × ") : "", ""];
  const head = element("tr", {}, columns.map((name, i) => element(name ? "th" : "td", name ? { scope: "col" } : {}, [i ? name : ""])));
  const rows = shown.map((term) => termRow(term, factors.length, top, theme, go));
  if (rest) rows.push(restRow(rest, factors.length, top, theme));
  const all = terms.reduce((total, { value }) => total + value, 0);
  const foot = element("tr", { class: "sum-total" }, [
    element("th", { scope: "row" }, [terms.length > 1 ? `sum of ${terms.length}` : "sum"]),
    ...factors.map(() => element("td")),
    element("td", { "data-value": String(all) }, [written(all)]),
    element("td"),
  ]);
  return element("table", { class: "every-sum" }, [
    ...(factors.length ? [element("thead", {}, [head])] : []),
    element("tbody", {}, rows),
    element("tfoot", {}, [foot]),
  ]);
}

/**
 * @param {Term} term
 * @param {number} nFactors
 * @param {number} top
 * @param {"light" | "dark"} theme
 * @param {Go} go
 */
function termRow({ name, factors, value, to }, nFactors, top, theme, go) {
  const said = visible(name, 60);
  const title = to ? element("button", { type: "button", class: "every-to", title: `Work out ${said}` }, [said]) : said;
  if (to && typeof title !== "string") title.addEventListener("click", () => go(to));
  return element("tr", {}, [
    element("th", { scope: "row" }, [title]),
    ...Array.from({ length: nFactors }, (_, i) => element("td", { "data-value": String(factors[i]) }, [written(factors[i])])),
    element("td", { "data-value": String(value) }, [signed(value)]),
    element("td", { class: "every-bar" }, [track(Math.abs(value) / top, signColor(value, theme))]),
  ]);
}

/**
 * @param {{count: number, value: number}} rest
 * @param {number} nFactors
 * @param {number} top
 * @param {"light" | "dark"} theme
 */
function restRow({ count, value }, nFactors, top, theme) {
  return element("tr", { class: "rest" }, [
    element("th", { scope: "row" }, [`… and ${count} more`]),
    ...Array.from({ length: nFactors }, () => element("td")),
    element("td", { "data-value": String(value) }, [signed(value)]),
    element("td", { class: "every-bar" }, [track(Math.abs(value) / top, signColor(value, theme))]),
  ]);
}
