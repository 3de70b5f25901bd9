/** All heads in the grid of the model view, coloured by a chosen measure, and the one that is chosen. */

import { menu } from "../../core/draw/controls.js";
import { strongest } from "../../core/draw/contrast.js";
import { element } from "../../core/draw/dom.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { roundTop } from "../../core/draw/scale.js";
import { running } from "../../core/text/text.js";
import { wholeTicks } from "../../marks/axes.js";
import { cornerOf, heightOf, layOut } from "../../marks/grid.js";
import { meanOf } from "../../marks/layer_dots.js";
import { largest, textOf, withInterval } from "./data.js";

/** CSS pixels: a cell of that size has room for its number; cells are no larger than the other. */
const NUMBERED = 34;
const WIDEST = 62;

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 * @returns {import("./section.js").Part}
 */
export function gridPart(survey, store) {
  const choose = menu("Coloured by", survey.measures.map(({ name, words }) => [name, `${running(words)} (${name})`]), (measure) => store.set({ measure }));
  const examples = element("div", { class: "examples" });
  const named = () => /** @type {import("./data.js").Measure} */ (survey.byName.get(store.get().measure));
  return {
    id: "all-heads",
    heading: "All heads",
    controls: [element("div", { class: "measure" }, [element("span", { class: "label", "aria-hidden": "true" }, ["Coloured by"]), choose])],
    room: 40,
    below: [examples],
    update({ measure, place }) {
      choose.value = measure;
      examples.replaceChildren(...examplesOf(survey, named(), place));
    },
    opened: () => examples.querySelector("a")?.focus(),
    draw: (look) => gridDrawing(survey, named(), look),
  };
}

/**
 * The best documents of a head, with links to its pages.
 *
 * @param {import("./data.js").Survey} survey
 * @param {import("./data.js").Measure} measure
 * @param {number} place
 */
function examplesOf(survey, measure, place) {
  const items = measure.examples[place].map(([document, score]) => {
    const name = element("bdi", {}, [running(survey.header.documents[document])]);
    const href = survey.linkTo(document, place);
    const shown = href ? element("a", { href }, [name]) : name;
    return element("li", {}, [shown, ` ${textOf(score, measure.unit)}`]);
  });
  const title = element("h3", {}, [`Where head ${survey.nameOf(place)} has most of it`]);
  if (!items.length) return [title, element("p", { class: "note" }, ["No document is kept as an example of this."])];
  return [title, element("ol", {}, items)];
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./data.js").Measure} measure
 * @param {import("./section.js").Look} look
 * @returns {import("./section.js").Drawing}
 */
function gridDrawing(survey, measure, { width, theme, colors, state }) {
  const { nLayers, nHeads } = survey;
  const grid = layOut(Math.min(width, 26 + nHeads * WIDEST), nLayers, nHeads, null);
  // Cells are lower than the square pictures of the model view: they have a number at most.
  grid.drop = Math.min(grid.drop, 36);
  const [wide, high] = [grid.side, Math.min(grid.side, grid.drop - 2)];
  const top = roundTop(Math.max(...measure.mean.map((one) => Math.abs(one ?? 0))));
  const color = signColor(1, theme);
  const numbered = wide >= NUMBERED;
  const named = wholeTicks(nHeads, nHeads * grid.pitch);
  const points = grid.places.map((place, slot) => {
    const [x, y] = cornerOf(grid, slot);
    return { x: x + wide / 2, y: y + high / 2, place, panel: 0 };
  });
  return {
    figure: {
      name: `all-heads-${measure.name}`,
      width,
      height: heightOf(grid) + 34,
      paper: colors.paper,
      paint(pen) {
        pen.text(26, 11, "head", { size: 11, color: colors.soft });
        for (const { x, y, place } of points) {
          const [left, above] = [x - wide / 2, y - high / 2];
          if (named.includes(place)) pen.text(x, grid.top - 5, String(place), { size: 11, color: colors.soft, anchor: "middle" });
          if (place % nHeads === 0) pen.text(18, y + 4, String(place / nHeads), { size: 11, color: colors.soft, anchor: "end" });
          const value = measure.mean[place];
          if (place === state.place) pen.rect(left - 2, above - 2, wide + 4, high + 4, colors.ink);
          pen.rect(left, above, wide, high, place === state.place ? colors.paper : colors.ground);
          if (value === null) continue;
          pen.rect(left, above, wide, high, color, Math.min(1, Math.abs(value) / top) * strongest(color, theme));
          if (numbered) pen.text(x, y + 4, cellText(value, measure.unit), { size: 11, color: colors.ink, anchor: "middle" });
        }
        drawRamp(pen, { left: grid.left, top: heightOf(grid) + 8, color, most: strongest(color, theme), colors, high: textOf(top, measure.unit) });
      },
      columns: ["measure", "layer", "head", "mean", "low", "high", "documents"],
      *rows() {
        for (const place of grid.places) {
          const numbers = [measure.mean, measure.low, measure.high].map((of) => of[place] ?? "");
          yield [measure.name, Math.floor(place / nHeads), place % nHeads, ...numbers, measure.documents];
        }
      },
    },
    points,
    said: ({ place }) => withInterval(measure, place),
    sentence: gridSaid(survey, measure),
  };
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./data.js").Measure} measure
 */
function gridSaid(survey, { words, mean, unit }) {
  const best = largest(mean);
  if (best < 0) return `No row counts for this: ${words}.`;
  return `${words.replace(/^./, (first) => first.toUpperCase())}: head ${survey.nameOf(best)} has most, ${textOf(mean[best], unit)}; the mean of all heads is ${textOf(meanOf(mean), unit)}.`;
}

/**
 * A number as it fits into a cell: of a share its percent.
 *
 * @param {number} value
 * @param {"share" | "nats" | "number"} unit
 */
function cellText(value, unit) {
  return unit === "share" ? (value * 100).toFixed(0) : String(Number(value.toPrecision(2)));
}

/**
 * @param {import("../../core/export/figure.js").Pen} pen
 * @param {{left: number, top: number, color: string, most: number, high: string, colors: import("../../marks/axes.js").Colors}} ramp
 */
function drawRamp(pen, { left, top, color, most, high, colors }) {
  const steps = 60;
  pen.rect(left, top, steps * 2, 8, colors.ground);
  for (let i = 0; i < steps; i += 1) pen.rect(left + i * 2, top, 2, 8, color, (i / (steps - 1)) * most);
  pen.text(left, top + 21, "0", { size: 11, color: colors.soft });
  pen.text(left + steps * 2, top + 21, high, { size: 11, color: colors.soft, anchor: "end" });
}
