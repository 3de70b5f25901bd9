/**
 * The report of a survey: its parts one below the other, about one chosen head.
 *
 * @import { Address } from "../../core/frame/frame.js"
 * @import { Figure } from "../../core/export/figure.js"
 * @import { Header, Measure, Pattern, PatternExample, PatternHead, State, Store } from "./data.js"
 */

import { scaleFor, signColor, signedShade } from "../../core/draw/colors.js";
import { button, menu, walk } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { createExport } from "../../core/export/export.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { createStore } from "../../core/state/state.js";
import { counted, short } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";
import { createRamp, facts as factsOf, track } from "../../marks/cards.js";
import { fromHash, intervalOf, largest, meanOf, Survey, textOf, toHash } from "./data.js";

/** Rows of a table of edges. */
const EDGES = 10;
/** Offsets that a sentence names. */
const NAMED = 3;

/** The measures that the grid begins with: the first that is there. */
const FIRST = ["to_previous", "to_sep", "entropy"];

/** @param {HTMLElement} host @param {Header} header @param {Address} address */
export function mountReport(host, header, address) {
  const survey = new Survey(header);
  const measure = survey.byName.get(FIRST.find((name) => survey.byName.get(name)?.mean.some(Boolean)) ?? "") ?? survey.measures[0];
  /** @type {State} */
  const start = { theme: "auto", head: survey.heads[Math.max(0, largest(measure.mean))], measure: measure.name };
  const known = { theme: ["light", "dark"], head: survey.heads, measure: [...survey.byName.keys()] };
  const store = createStore(fromHash(address.read(), start, known));
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  /** @returns {"light" | "dark"} */
  const theme = () => {
    const { theme: chosen } = store.get();
    return (chosen === "auto" ? darkness.matches : chosen === "dark") ? "dark" : "light";
  };
  const switcher = button("", () => store.set({ theme: theme() === "dark" ? "light" : "dark" }), { class: "theme" });
  const [grid, ...others] = [createGrid(survey, store), createOneHead(survey, store), ...(header.profile ? [createProfile(survey, header.profile)] : [])];
  const update = () => {
    host.dataset.theme = theme();
    const other = theme() === "dark" ? "light" : "dark";
    switcher.textContent = other === "dark" ? "Dark" : "Light";
    switcher.setAttribute("aria-label", `Switch to ${other} colours`);
    const state = store.get();
    const look = { measure: /** @type {Measure} */ (survey.byName.get(state.measure)), place: survey.heads.indexOf(state.head), theme: theme() };
    for (const part of [grid, ...others]) part.update(look);
    address.write(toHash(state, start));
  };
  const patterns = createPatterns(survey, store);
  host.classList.add("minibert", "report");
  host.append(switcher, createTop(header), grid.root, ...(patterns ? [patterns] : []), ...createEdges(survey, store), ...others.map(({ root }) => root), createFacts(header));
  store.subscribe(update);
  darkness.addEventListener("change", update);
  address.listen(() => store.set(fromHash(address.read(), start, known)));
  update();
}

/**
 * @typedef {object} Look  what a part shows
 * @property {Measure} measure
 * @property {number} place  of the chosen head
 * @property {"light" | "dark"} theme
 *
 * @typedef {{root: HTMLElement, update: (look: Look) => void}} Part
 */

/** A heading, a sentence that says what is seen, and what can be saved. @param {string} id @param {string} heading @param {HTMLElement[]} content @param {() => Figure} figure */
function partOf(id, heading, content, figure) {
  const sentence = element("p", { class: "seen" });
  const giving = createExport(() => [{ name: id, view: { figure: async () => figure() } }]);
  const top = element("div", { class: "top" }, [element("h2", { id }, [heading]), giving.root]);
  return { sentence, root: element("section", { class: "part", "aria-labelledby": id }, [top, sentence, ...content]) };
}

/** The numbers of measures, a row a head. @param {Survey} survey @param {Measure[]} measures */
function tableOf({ nHeads }, measures) {
  return {
    columns: ["measure", "layer", "head", "mean", "low", "high", "documents"],
    *rows() {
      for (const { name, mean, low, high, documents } of measures) {
        for (const [place, value] of mean.entries()) yield [name, Math.floor(place / nHeads), place % nHeads, value ?? "", low[place] ?? "", high[place] ?? "", documents];
      }
    },
  };
}

/** All heads, a row a layer, coloured by a chosen measure; an arrow or a click chooses one. @param {Survey} survey @param {Store} store @returns {Part} */
function createGrid(survey, store) {
  const { nLayers, nHeads, heads } = survey;
  const choose = menu("Coloured by", survey.measures.map(({ name, words }) => [name, `${running(words)} (${name})`]), (measure) => store.set({ measure }));
  const examples = element("div", { class: "examples" });
  const cells = heads.map((head) => {
    const open = () => {
      store.set({ head });
      examples.querySelector("a")?.focus();
    };
    const made = button("", open, { class: "grid-head" });
    made.addEventListener("focus", () => store.set({ head }));
    return made;
  });
  const rows = Array.from({ length: nLayers }, (_, layer) => cells.slice(layer * nHeads, (layer + 1) * nHeads));
  const means = rows.map(() => element("td"));
  const names = ["", ...Array.from({ length: nHeads }, (_, head) => String(head)), "mean"];
  const table = element("table", { class: "grid", "aria-label": "One row for each layer, one column for each head" }, [
    element("thead", {}, [element("tr", {}, names.map((name) => (name ? element("th", { scope: "col" }, [name]) : element("td"))))]),
    element("tbody", {}, rows.map((row, layer) => element("tr", {}, [element("th", { scope: "row" }, [String(layer)]), ...row.map((cell) => element("td", {}, [cell])), means[layer]]))),
  ]);
  table.addEventListener("keydown", (event) => walk(event, rows) && event.preventDefault());
  const ramp = createRamp();
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  const tools = element("div", { class: "measure" }, [element("span", { class: "label", "aria-hidden": "true" }, ["Coloured by"]), choose]);
  const content = [tools, element("div", { class: "grid-room" }, [table]), element("div", { class: "grid-ramp" }, ramp.parts), readout, examples];
  const now = () => /** @type {Measure} */ (survey.byName.get(store.get().measure));
  const { root, sentence } = partOf("all-heads", "All heads", content, () => pageFigure(table, running(now().words), { name: `all-heads-${now().name}`, ...tableOf(survey, [now()]) }));
  return {
    root,
    update({ measure, place, theme }) {
      const { mean, unit, documents } = measure;
      const top = scaleFor([Math.max(...mean.map((one) => Math.abs(one ?? 0)))]);
      choose.value = measure.name;
      sentence.textContent = gridSaid(survey, measure);
      cells.forEach((cell, i) => {
        cell.textContent = cellText(mean[i], unit);
        cell.style.backgroundColor = signedShade(mean[i] ?? 0, top, theme);
        cell.tabIndex = i === place ? 0 : -1;
        cell.setAttribute("aria-label", `Head ${heads[i]}: ${mean[i] === null ? "none" : cell.textContent}${unit === "share" ? "\u202f%" : ""}`);
        cell.setAttribute("aria-pressed", String(i === place));
      });
      rows.forEach((_, layer) => (means[layer].textContent = cellText(meanOf(mean.slice(layer * nHeads, (layer + 1) * nHeads)), unit)));
      ramp.show(`linear-gradient(90deg, transparent, ${signedShade(top, top, theme)})`, [0, top].map((value) => textOf(value, unit)));
      const said = mean[place] === null ? "no row counts" : `${textOf(mean[place], unit)} (95\u202f% interval ${intervalOf(measure, place)}, ${counted(documents, "1 document", " documents")})`;
      readout.textContent = `Head ${survey.nameOf(place)}: ${said}`;
      examples.replaceChildren(...examplesOf(survey, measure, place));
    },
  };
}

/** A number as it fits into a cell: of a share its percent. @param {number | null} value @param {Measure["unit"]} unit */
function cellText(value, unit) {
  if (value === null) return "";
  return unit === "share" ? (value * 100).toFixed(0) : String(Number(value.toPrecision(2)));
}

/** @param {Survey} survey @param {Measure} measure */
function gridSaid(survey, { words, mean, unit }) {
  const best = largest(mean);
  if (best < 0) return `No row counts for this: ${words}.`;
  return `${words.replace(/^./, (first) => first.toUpperCase())}: head ${survey.nameOf(best)} has most, ${textOf(mean[best], unit)}; the mean of all heads is ${textOf(meanOf(mean), unit)}.`;
}

/** The best documents of a head, with links to its pages. @param {Survey} survey @param {Measure} measure @param {number} place */
function examplesOf(survey, measure, place) {
  const items = measure.examples[place].map(([document, score]) => {
    const name = element("bdi", {}, [running(survey.header.documents[document])]);
    const href = survey.linkTo(document, place);
    return element("li", {}, [href ? element("a", { href }, [name]) : name, ` ${textOf(score, measure.unit)}`]);
  });
  const title = element("h3", {}, [`Where head ${survey.nameOf(place)} has most of it`]);
  if (!items.length) return [title, element("p", { class: "note" }, ["No document is kept as an example of this."])];
  return [title, element("ol", {}, items)];
}

/** The chosen head in every measure. @param {Survey} survey @param {Store} store @returns {Part} */
function createOneHead(survey, store) {
  const titles = ["Measure", "Mean", "", "95\u202f% interval", "Rank"];
  const body = element("tbody");
  const head = element("thead", {}, [element("tr", {}, titles.map((title) => (title ? element("th", { scope: "col" }, [title]) : element("td", { class: "grid-bar" }))))]);
  const table = element("table", { class: "fed" }, [head, body]);
  const named = () => survey.nameOf(survey.heads.indexOf(store.get().head));
  const { root, sentence } = partOf("one-head", "The chosen head", [table], () => pageFigure(table, `Head ${named()}`, { name: "all-measures", ...tableOf(survey, survey.measures) }));
  return {
    root,
    update({ place, theme }) {
      const ranked = survey.measures.flatMap((measure) => {
        const value = measure.mean[place];
        return value === null ? [] : [{ measure, value, rank: 1 + measure.mean.filter((one) => one !== null && one > value).length }];
      });
      const [best] = [...ranked].sort((one, other) => one.rank - other.rank);
      const highest = best ? ` stands highest in this: ${running(best.measure.words)} (rank ${best.rank})` : " has no number";
      sentence.textContent = `Among ${survey.heads.length} heads, head ${survey.nameOf(place)}${highest}. Choose a measure to colour all heads by it.`;
      body.replaceChildren(...ranked.map(({ measure, value, rank }) => {
        const most = Math.max(...measure.mean.map((one) => Math.abs(one ?? 0))) || 1;
        const name = button(running(measure.words), () => store.set({ measure: measure.name }), { class: "to-head", title: running(measure.source) });
        return element("tr", {}, [
          element("th", { scope: "row" }, [name]),
          element("td", {}, [textOf(value, measure.unit)]),
          element("td", { class: "grid-bar" }, [track(Math.abs(value) / most, signColor(value, theme))]),
          element("td", {}, [intervalOf(measure, place)]),
          element("td", {}, [String(rank)]),
        ]);
      }));
    },
  };
}

/** How far the chosen head looks: a bar an offset. @param {Survey} survey @param {{reach: number, mass: number[][]}} profile @returns {Part} */
function createProfile(survey, { reach, mass }) {
  const bars = element("div", { class: "profile", role: "img" }, mass[0].map((_, i) => element("span", { "data-offset": signed(i - reach) })));
  const ends = element("p", { class: "ramp-ends" }, [`${signed(-reach)}: before it`, "offset from the token", `${signed(reach)}: after it`].map((text) => element("span", {}, [text])));
  const table = {
    columns: ["layer", "head", "offset", "mass"],
    *rows() {
      for (const [head, all] of mass.entries()) {
        for (const [i, value] of all.entries()) yield [...survey.heads[head].split("-").map(Number), i - reach, value];
      }
    },
  };
  const board = element("div", {}, [bars, ends]);
  const { root, sentence } = partOf("distance-profile", "How far the chosen head looks", [board], () => pageFigure(board, sentence.textContent ?? "", { name: "distance-profile", ...table }));
  return {
    root,
    update({ place, theme }) {
      const numbers = mass[place];
      const top = Math.max(...numbers) || 1;
      sentence.textContent = profileSaid(survey.nameOf(place), numbers, reach);
      bars.setAttribute("aria-label", sentence.textContent);
      bars.style.color = signColor(1, theme);
      for (const [i, bar] of /** @type {HTMLElement[]} */ ([...bars.children]).entries()) {
        bar.style.height = `${(100 * numbers[i]) / top}%`;
        bar.title = `offset ${bar.dataset.offset}: ${percent(numbers[i])}`;
      }
    },
  };
}

/** @param {number} offset */
function signed(offset) {
  return offset > 0 ? `+${offset}` : String(offset).replace("-", "−");
}

/** @param {string} head @param {number[]} numbers @param {number} reach */
function profileSaid(head, numbers, reach) {
  const order = numbers.map((_, i) => i).sort((a, b) => numbers[b] - numbers[a] || Math.abs(a - reach) - Math.abs(b - reach));
  const most = order.slice(0, NAMED).map((i) => `${percent(numbers[i])} at offset ${signed(i - reach)}`);
  const [back, ahead] = [numbers.slice(0, reach), numbers.slice(reach + 1)].map((side) => side.reduce((sum, value) => sum + value, 0));
  return `Head ${head} has most of its attention near these places: ${most.join(", ")}; up to ${reach} tokens back it gives ${percent(back)}, up to ${reach} ahead ${percent(ahead)}.`;
}

/** @param {Header} header */
function createTop({ title, size, notes }) {
  return element("header", { class: "heading" }, [
    element("h1", {}, ["What the heads of a model do"]),
    element("div", { class: "texts" }, [element("p", { class: "text" }, [element("bdi", {}, [running(title)])])]),
    element("p", { class: "sizes" }, [running(size)]),
    ...notes.map((note) => element("p", { class: "note" }, [running(note)])),
  ]);
}

/** @param {Header} header */
function createFacts({ facts, command }) {
  const again = command ? [element("h3", {}, ["To do it again"]), element("pre", {}, [element("code", {}, [running(command)])])] : [];
  const rows = facts.map(([name, value]) => [running(name), element("bdi", {}, [running(value)])]);
  return section("surveyed", "What was surveyed", [factsOf(rows), ...again]);
}

/** @param {string} id @param {string} heading @param {HTMLElement[]} content */
function section(id, heading, content) {
  return element("section", { class: "part", "aria-labelledby": id }, [element("h2", { id }, [heading]), ...content]);
}

/** Heads of a pattern that have a row each. */
const SHOWN = 8;

/** @param {Survey} survey @param {Store} store */
function createPatterns(survey, store) {
  const { patterns } = survey.header;
  if (!patterns.length) return null;
  const rows = patterns.flatMap((pattern) => rowsOf(survey, store, pattern));
  const titles = ["Looks at", "Head", "Score", "95\u202f% interval", "Without it", "Examples"];
  const head = element("thead", {}, [element("tr", {}, titles.map((title) => element("th", { scope: "col" }, [title])))]);
  const table = element("table", { class: "patterns" }, [head, ...rows]);
  const note = element("p", { class: "note" }, [
    "A head in bold is known by the pattern: its whole interval is above the middle between “Without it” and 100\u202f%. For all words alike it is enough to be above “Without it”.",
  ]);
  return section("patterns", "Patterns of heads", [element("p", { class: "seen" }, [patternsSaid(survey)]), table, note]);
}

/** What an edge's number is, by its side. */
const FED = {
  query: ["queries", "score of the tokens that the head looks at, less that of all it may see"],
  key: ["keys", "the same score, by what stands at those tokens"],
  value: ["values", "share of what the head moves"],
};

/** Who feeds whom: a table for the queries, the keys and the values of heads. @param {Survey} survey @param {Store} store */
function createEdges(survey, store) {
  const { edges } = survey.header;
  if (!edges.length) return [];
  const tables = Object.entries(FED).map(([side, [name, unit]]) => {
    const titles = ["Written by", "For head", "How much", "By weights alone"];
    const head = element("thead", {}, [element("tr", {}, titles.map((title) => element("th", { scope: "col" }, [title])))]);
    const rows = edges.filter((edge) => edge[0] === side).slice(0, EDGES).map(([, source, place, number, weights]) =>
      element("tr", {}, [
        element("th", { scope: "row" }, [source.replace("-", "\u2011")]),
        element("td", {}, [toHead(survey, store, place)]),
        element("td", {}, [side === "value" ? percent(number) : short(number)]),
        element("td", {}, [weights === null ? "–" : short(weights)]),
      ]),
    );
    return element("div", {}, [
      element("h3", {}, [`Their ${name}`]),
      element("p", { class: "note" }, [unit]),
      element("table", { class: "fed" }, [head, element("tbody", {}, rows)]),
    ]);
  });
  return [section("edges", "Who feeds these heads", [
    element("p", { class: "seen" }, ["Queries, keys and values are sums of what embeddings, heads and MLPs wrote. These parts are the largest over the corpus; the last column is the composition score of two heads."]),
    element("div", { class: "sides" }, tables),
  ])];
}

/** @param {Survey} survey @param {Store} store @param {Pattern} pattern */
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

/** A cell below all titles but the first. @param {(Node | string)[]} children */
function across(children) {
  const made = element("td", { class: "across" }, children);
  made.colSpan = 5;
  return made;
}

/** @param {Survey} survey @param {Store} store @param {number} place */
function toHead(survey, store, place) {
  return button(survey.nameOf(place), () => store.set({ head: survey.heads[place] }), { class: "to-head", title: "Show this head in all parts" });
}

/** @param {Survey} survey @param {Store} store @param {Pattern} pattern @param {PatternHead} head */
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

/** @param {Survey} survey @param {number} place @param {PatternExample} example */
function exampleOf(survey, place, example) {
  const token = (/** @type {string} */ text) => element("bdi", {}, [visible(text.trim() || text, 24)]);
  const document = running(survey.header.documents[example.document]);
  const { query_token: query, key_token: key } = example;
  const shown = [token(query), " → ", token(key)];
  const href = survey.linkTo(example.document, place, example);
  const made = href ? element("a", { href, title: document }, shown) : element("span", { title: document }, shown);
  return element("span", {}, [made, ` ${percent(example.score)}`]);
}

/** @param {Survey} survey */
function patternsSaid({ header: { patterns }, heads: all }) {
  const named = new Set(patterns.flatMap(({ heads }) => heads.filter((one) => one.named).map(({ place }) => place)));
  const counts = patterns.map(({ words, heads }) => ({ words, count: heads.filter((one) => one.named).length }));
  const most = counts.reduce((best, one) => (one.count > best.count ? one : best));
  const ending = most.count ? ` Most of them, ${most.count}, look at ${running(most.words)}.` : "";
  // Of any two tokens one stands before the other; other patterns have rows in few texts, or are measured on drawn ones.
  const documents = Math.max(...patterns.filter(({ name }) => name === "previous").map((one) => one.documents));
  return `Over ${counted(documents, "1 document", " documents")}, ${named.size} of ${all.length} heads are known by one of ${patterns.length} patterns.${ending}`;
}
