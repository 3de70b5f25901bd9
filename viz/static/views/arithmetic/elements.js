/**
 * The steps of a number as elements, and as a figure to take away.
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Step, Term, Way } from "./steps.js"
 */
import { signColor } from "../../core/draw/colors.js";
import { button } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { signed, written } from "../../core/text/numbers.js";
import { visible } from "../../core/text/text.js";
import { numeral, track } from "../../marks/cards.js";
import { largest, total } from "./steps.js";

/** Terms of a sum that are listed at once. */
const LISTED = 6;

/** @typedef {{theme: "light" | "dark", go: (way: Way) => void}} Look  go: works out a term */

/** A formula: letters in italics where they stand between underscores, numbers as they are. @param {(string | Node)[]} parts */
function formula(...parts) {
  /** @type {(text: string) => (string | Node)[]} */
  const letters = (text) => text.split("_").map((part, i) => (i % 2 ? element("var", {}, [part]) : part));
  return element("p", { class: "sum-formula" }, parts.map((part) => (typeof part === "string" ? letters(part) : [part])).flat());
}

/** @param {(string | Node)[]} parts */
export function words(...parts) {
  return element("p", { class: "sum-words" }, parts);
}

/** A token in a sentence. @param {Tokens} tokens @param {number} index @param {number} [limit] */
export function named(tokens, index, limit = 40) {
  return element("strong", { class: "sum-token" }, [tokenChip(tokens, index, limit)]);
}

/** A heading that opens what stands below it. @param {string} title @param {string} value  that it comes to @param {Node[]} inside @param {() => void} open */
export function folded(title, value, inside, open) {
  const head = button(title, open, { class: "sum-fold" });
  head.append(element("span", { class: "sum-value" }, [value]));
  return [element("h2", {}, [head]), element("div", { class: "sum-inside" }, inside)];
}

/** @param {Step} told @param {Look} look */
export function stepOf({ id, title, says, sum, lines, value }, look) {
  const inside = [words(says), ...(sum ? sumTables(sum, look) : []), ...lines.map(lineOf)];
  const made = element("li", { class: "sum-step" }, folded(title, Number.isNaN(value) ? "" : written(value), inside, () => look.go({ level: id })));
  made.dataset.step = id;
  if (!Number.isNaN(value)) made.dataset.value = String(value);
  return made;
}

/** A line of a formula; the number that it ends with is what it comes to. @param {(string | number)[]} line */
export function lineOf(line) {
  const parts = line.map((part, i) => {
    if (typeof part === "string") return part;
    const before = line[i - 1];
    const inner = part < 0 && typeof before === "string" && /[+−×/] $/.test(before);
    return numeral("number", part, inner ? `(${written(part)})` : written(part));
  });
  const made = formula(...parts);
  made.classList.toggle("sum-plain", typeof line[line.length - 1] === "string");
  return made;
}

/** The largest terms of a sum, and all of them to unfold. @param {NonNullable<Step["sum"]>} sum @param {Look} look */
export function sumTables({ factors, terms }, look) {
  const { shown, rest } = largest(terms, LISTED);
  const table = sumTable(factors, shown, rest, terms, look);
  if (!rest) return [table];
  return [table, unfolding([`All ${terms.length} in their order`], async () => [sumTable(factors, terms, null, terms, look)])];
}

/** @typedef {() => Promise<Node[]>} Body */

/** A line that opens what is made when it is first looked at. @param {(Node | string)[]} line @param {Body} body @param {string} [kind] */
export function unfolding(line, body, kind = "") {
  const made = element("details", {}, [element("summary", { class: kind }, line)]);
  const open = async () => {
    made.append(...(await body().catch(({ message }) => [words(message)])));
    made.dataset.drawn = "true";
  };
  made.addEventListener("toggle", open, { once: true });
  return made;
}

/**
 * @param {string[]} factors
 * @param {Term[]} shown
 * @param {{count: number, value: number} | null} rest
 * @param {Term[]} terms  all
 * @param {Look} look
 */
function sumTable(factors, shown, rest, terms, look) {
  const top = Math.max(...shown.map(({ value }) => Math.abs(value)), Math.abs(rest?.value ?? 0)) || 1;
  const columns = ["", ...factors, factors.length === 2 && !factors[1].includes(" ") ? factors.join(" × ") : "exp", ""];
  const head = element("tr", {}, columns.map((name, i) => element(name ? "th" : "td", name ? { scope: "col" } : {}, [i ? name : ""])));
  const row = (/** @type {string | Node} */ name, /** @type {number[]} */ given, /** @type {number} */ value) => [
    element("th", { scope: "row" }, [name]),
    ...factors.map((_, i) => element("td", given.length ? { "data-value": String(given[i]) } : {}, [given.length ? written(given[i]) : ""])),
    element("td", { "data-value": String(value) }, [signed(value)]),
    element("td", { class: "sum-bar" }, [track(Math.abs(value) / top, signColor(value, look.theme))]),
  ];
  const rows = shown.map(({ name, to, factors: given, value }) => {
    const said = visible(name, 60);
    return element("tr", {}, row(to ? button(said, () => look.go(to), { class: "sum-to", title: `Work out ${said}` }) : said, given, value));
  });
  if (rest) rows.push(element("tr", { class: "rest" }, row(`… and ${rest.count} more`, [], rest.value)));
  const all = total(terms.map(({ value }) => value));
  const foot = element("tr", { class: "sum-total" }, [
    element("th", { scope: "row" }, [terms.length > 1 ? `sum of ${terms.length}` : "sum"]),
    ...factors.map(() => element("td")),
    element("td", { "data-value": String(all) }, [written(all)]),
    element("td"),
  ]);
  return element("table", { class: "sum-terms" }, [
    ...(factors.length ? [element("thead", {}, [head])] : []),
    element("tbody", {}, rows),
    element("tfoot", {}, [foot]),
  ]);
}

/**
 * The steps as they are shown, and all terms as a table.
 *
 * @param {HTMLElement} root  that the steps stand in
 * @param {string} title
 * @param {Step[]} steps
 */
export function workedFigure(root, title, steps) {
  return pageFigure(root, title, {
    name: "arithmetic",
    columns: ["step", "term", "factor", "factor", "value"],
    *rows() {
      for (const { title: step, sum, value } of steps) {
        for (const { name, factors, value: own } of sum?.terms ?? []) yield [step, name, factors[0] ?? "", factors[1] ?? "", own];
        if (Number.isFinite(value)) yield [step, "", "", "", value];
      }
    },
  });
}
