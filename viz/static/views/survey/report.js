/** The report of a survey: its parts one below the other, about one chosen head. */

import { button } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { holdState } from "../../core/state/held.js";
import { running } from "../../core/text/text.js";
import { Survey } from "./data.js";
import { gridPart } from "./grid.js";
import { comparable, differentiated, layerParts } from "./layers.js";
import { mapPart } from "./map.js";
import { createPatterns } from "./patterns.js";
import { profilePart } from "./profile.js";
import { Section } from "./section.js";
import { fromHash, toHash } from "./state.js";

/** The measures that the grid begins with: the first that is there. */
const FIRST = ["to_previous", "to_sep", "entropy"];

/**
 * @param {HTMLElement} host
 * @param {import("./data.js").Header} header
 * @param {import("../../core/frame/frame.js").Address} address
 */
export function mountReport(host, header, address) {
  const survey = new Survey(header);
  const [compared, changed] = [comparable(survey), differentiated(survey)];
  const measure = FIRST.find((name) => survey.found(name)) ?? survey.measures[0].name;
  const best = survey.byName.get(measure)?.mean.reduce((/** @type {number} */ most, value, place, all) => ((value ?? -1) > (all[most] ?? -1) ? place : most), 0);
  /** @type {import("./state.js").State} */
  const start = { theme: "auto", place: best ?? 0, measure, compared: begin(compared), changed: begin(changed), colored: "layer" };
  const known = { nLayers: survey.nLayers, nHeads: survey.nHeads, measures: [...survey.byName.keys()], compared, changed };
  const store = holdState(fromHash(address.read(), start, known));
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const chosen = store.get().theme;
    if (chosen !== "auto") return chosen;
    return darkness.matches ? "dark" : "light";
  };
  const switcher = button("", () => store.set({ theme: theme() === "dark" ? "light" : "dark" }), { class: "theme" });
  const parts = [gridPart(survey, store), ...layerParts(survey, store), profilePart(survey), mapPart(survey, store)];
  const sections = parts.flatMap((part) => (part ? [new Section(part, survey, store, theme)] : []));
  const update = () => {
    host.dataset.theme = theme();
    const other = theme() === "dark" ? "light" : "dark";
    switcher.textContent = other === "dark" ? "Dark" : "Light";
    switcher.setAttribute("aria-label", `Switch to ${other} colours`);
    for (const section of sections) section.update();
    address.write(toHash(store.get(), start, survey.nHeads));
  };
  const patterns = createPatterns(survey, store);
  const [grid, ...others] = sections.map(({ root }) => root);
  host.classList.add("minibert", "report");
  host.append(switcher, createTop(header), grid, ...(patterns ? [patterns] : []), ...others, createFacts(header));
  store.subscribe(update);
  darkness.addEventListener("change", update);
  address.listen(() => store.set(fromHash(address.read(), start, known)));
  update();
}

/**
 * The measure that a choice begins with.
 *
 * @param {string[]} names
 */
function begin(names) {
  return names.includes("to_sep") ? "to_sep" : names[0] ?? "";
}

/** @param {import("./data.js").Header} header */
function createTop({ title, size, notes }) {
  return element("header", { class: "heading" }, [
    element("h1", {}, ["What the heads of a model do"]),
    element("div", { class: "texts" }, [element("p", { class: "text" }, [element("bdi", {}, [running(title)])])]),
    element("p", { class: "sizes" }, [running(size)]),
    ...notes.map((note) => element("p", { class: "note" }, [running(note)])),
  ]);
}

/** @param {import("./data.js").Header} header */
function createFacts({ facts, command }) {
  const rows = facts.flatMap(([name, value]) => [
    element("dt", {}, [running(name)]),
    element("dd", {}, [element("bdi", {}, [running(value)])]),
  ]);
  const again = command
    ? [element("h3", {}, ["To do it again"]), element("pre", {}, [element("code", {}, [running(command)])])]
    : [];
  return element("section", { class: "part", "aria-labelledby": "surveyed" }, [
    element("h2", { id: "surveyed" }, ["What was surveyed"]),
    element("dl", { class: "facts" }, rows),
    ...again,
  ]);
}
