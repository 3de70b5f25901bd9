/**
 * All heads in the grid of the model view, coloured by a chosen measure, and the one that is chosen.
 *
 * @import { Pen } from "../../core/export/figure.js"
 * @import { Colors } from "../../marks/layer_dots.js"
 * @import { Measure, Store, Survey } from "./data.js"
 * @import { Drawing, Look, Part } from "./report.js"
 */

import { signColor, strongest } from "../../core/draw/colors.js";
import { menu } from "../../core/draw/controls.js";
import { element } from "../../core/draw/dom.js";
import { placeOn, roundTop, ticks } from "../../core/draw/canvas.js";
import { percent, running } from "../../core/text/text.js";
import { drawAxes, layerPanels, meanOf, wholeTicks } from "../../marks/layer_dots.js";
import { largest, textOf, withInterval } from "./data.js";

/** CSS pixels: a cell of that size has room for its number; cells are no larger than the other. */
const NUMBERED = 34;
const WIDEST = 62;
/** CSS pixels left of the cells, for the numbers of layers, and above them. */
const [LAYERS, HEADS] = [26, 28];

/** @param {Survey} survey @param {Store} store @returns {Part} */
export function gridPart(survey, store) {
  const choose = menu("Coloured by", survey.measures.map(({ name, words }) => [name, `${running(words)} (${name})`]), (measure) => store.set({ measure }));
  const examples = element("div", { class: "examples" });
  const named = () => /** @type {Measure} */ (survey.byName.get(store.get().measure));
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
 * @param {Survey} survey
 * @param {Measure} measure
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

/** @param {Survey} survey @param {Measure} measure @param {Look} look @returns {Drawing} */
function gridDrawing(survey, measure, { width, theme, colors, state }) {
  const { nLayers, nHeads } = survey;
  const pitch = Math.min(Math.floor((width - LAYERS) / nHeads), WIDEST);
  const wide = Math.max(3, pitch - (pitch >= 40 ? 5 : 2));
  const drop = Math.min(pitch, 36);
  const high = Math.min(wide, drop - 2);
  const tall = HEADS + nLayers * drop;
  const top = roundTop(Math.max(...measure.mean.map((one) => Math.abs(one ?? 0))));
  const color = signColor(1, theme);
  const numbered = wide >= NUMBERED;
  const named = wholeTicks(nHeads, nHeads * pitch);
  const points = measure.mean.map((_, place) => {
    return { x: LAYERS + (place % nHeads) * pitch + wide / 2, y: HEADS + Math.floor(place / nHeads) * drop + high / 2, place, panel: 0 };
  });
  return {
    figure: {
      name: `all-heads-${measure.name}`,
      width,
      height: tall + 34,
      paper: colors.paper,
      paint(pen) {
        pen.text(26, 11, "head", { size: 11, color: colors.soft });
        for (const { x, y, place } of points) {
          const [left, above] = [x - wide / 2, y - high / 2];
          if (named.includes(place)) pen.text(x, HEADS - 5, String(place), { size: 11, color: colors.soft, anchor: "middle" });
          if (place % nHeads === 0) pen.text(18, y + 4, String(place / nHeads), { size: 11, color: colors.soft, anchor: "end" });
          const value = measure.mean[place];
          if (place === state.place) pen.rect(left - 2, above - 2, wide + 4, high + 4, colors.ink);
          pen.rect(left, above, wide, high, place === state.place ? colors.paper : colors.ground);
          if (value === null) continue;
          pen.rect(left, above, wide, high, color, Math.min(1, Math.abs(value) / top) * strongest(color, theme));
          if (numbered) pen.text(x, y + 4, cellText(value, measure.unit), { size: 11, color: colors.ink, anchor: "middle" });
        }
        drawRamp(pen, { left: LAYERS, top: tall + 8, color, most: strongest(color, theme), colors, high: textOf(top, measure.unit) });
      },
      ...tableOf(survey, [measure]),
    },
    points,
    said: ({ place }) => withInterval(measure, place),
    sentence: gridSaid(survey, measure),
  };
}

/** @param {Survey} survey @param {Measure} measure */
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
 * @param {Pen} pen
 * @param {{left: number, top: number, color: string, most: number, high: string, colors: Colors}} ramp
 */
function drawRamp(pen, { left, top, color, most, high, colors }) {
  const steps = 60;
  pen.rect(left, top, steps * 2, 8, colors.ground);
  for (let i = 0; i < steps; i += 1) pen.rect(left + i * 2, top, 2, 8, color, (i / (steps - 1)) * most);
  pen.text(left, top + 21, "0", { size: 11, color: colors.soft });
  pen.text(left + steps * 2, top + 21, high, { size: 11, color: colors.soft, anchor: "end" });
}

/** Measures that are drawn by layer; of the first ones also weighed by norms. @type {Record<string, string>} */
const KINDS = { to_first: "the first token", to_cls: "[CLS]", to_sep: "[SEP]", to_punctuation: "punctuation" };
/** @type {Record<string, string>} */
const OTHERS = {
  to_previous: "the token before", to_next: "the token behind", to_self: "the token itself",
  entropy: "entropy of all rows", entropy_cls: "entropy of the rows of [CLS]",
};

/** All heads by layer, a panel a measure that this survey has. @param {Survey} survey @returns {Part | null} */
export function layersPart(survey) {
  const weighed = Object.entries(KINDS).flatMap(([name, title]) => [[name, title], [`${name}_by_norm`, `${title}, weighed by norms`]]);
  // Where there is a [CLS] it is the first token.
  const twice = survey.found("to_cls") ? KINDS.to_first : "";
  const panels = [...weighed, ...Object.entries(OTHERS)].flatMap(([name, title]) => {
    const measure = survey.found(name);
    return measure && !(twice && title.startsWith(twice)) ? [{ ...measure, title }] : [];
  });
  if (!panels.length) return null;
  const { nLayers, nHeads } = survey;
  const text = (/** @type {number} */ value, unit = "") => (unit === "share" ? share(value) : `${value}${unit === "nats" ? " nats" : ""}`);
  return {
    id: "by-layer",
    heading: "Heads by layer",
    draw({ width, theme, colors, state }) {
      const plot = layerPanels({ width, panels, nLayers, nHeads, chosen: state.place, color: signColor(1, theme), colors, text });
      return {
        figure: { name: "heads-by-layer", width, height: plot.height, paper: colors.paper, paint: plot.paint, ...tableOf(survey, panels) },
        points: plot.points,
        said: ({ place, panel }) => `${panels[panel].title} ${withInterval(panels[panel], place)}`,
        sentence: mostSaid(survey, panels),
      };
    },
  };
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

/** The highest head and layer of the first measures. @param {Survey} survey @param {(Measure & {title: string})[]} panels */
function mostSaid(survey, panels) {
  const parts = panels.filter(({ unit }) => unit === "share").slice(0, NAMED).map(({ title, mean, unit }) => {
    const best = largest(mean);
    const means = Array.from({ length: survey.nLayers }, (_, layer) => meanOf(mean.slice(layer * survey.nHeads, (layer + 1) * survey.nHeads)));
    const layer = largest(means);
    return `${title} in head ${survey.nameOf(best)} (${textOf(mean[best], unit)}) and layer ${layer} (${textOf(means[layer], unit)} on average)`;
  });
  return parts.length ? `Most attention goes to ${parts.join(", to ")}.` : "A dot is a head, the line the mean of each layer.";
}

/** CSS pixels. */
const HEIGHT = 190;
const [LEFT, RIGHT, ABOVE, BELOW] = [48, 10, 30, 44];
/** The offsets whose share a sentence names. */
const NAMED = 3;

/** @param {Survey} survey @returns {Part | null} */
export function profilePart(survey) {
  const { profile } = survey.header;
  if (!profile) return null;
  return {
    id: "distance-profile",
    heading: "How far the chosen head looks",
    onlyPointed: true,
    draw: (look) => profileDrawing(survey, profile, look),
  };
}

/** @param {Survey} survey @param {{reach: number, mass: number[][]}} profile @param {Look} look @returns {Drawing} */
function profileDrawing(survey, { reach, mass }, { width, theme, colors, state: { place } }) {
  const numbers = mass[place];
  const top = roundTop(Math.max(...numbers));
  const x = { low: -reach - 0.5, high: reach + 0.5, from: LEFT, to: width - RIGHT };
  const y = { low: 0, high: top, from: ABOVE + HEIGHT, to: ABOVE };
  const wide = Math.max(1, ((x.to - x.from) / numbers.length) * 0.8);
  const color = signColor(1, theme);
  return {
    figure: {
      name: `distance-profile-${survey.nameOf(place)}`,
      width,
      height: ABOVE + HEIGHT + BELOW,
      paper: colors.paper,
      paint(pen) {
        const panel = { title: `head ${survey.nameOf(place)}`, x, y };
        const across = ticks(-reach, reach, Math.max(2, width / 90));
        const name = "offset: behind the token before 0, ahead of it after 0";
        drawAxes(pen, panel, colors, { x: across, y: ticks(0, top, 4), xText: signed, yText: share, name });
        numbers.forEach((value, i) => {
          const [middle, at] = [placeOn(x, i - reach), placeOn(y, value)];
          pen.rect(middle - wide / 2, at, wide, y.from - at, color);
        });
      },
      columns: ["layer", "head", "offset", "mass"],
      *rows() {
        for (const [head, all] of mass.entries()) {
          for (const [i, value] of all.entries()) {
            yield [Math.floor(head / survey.nHeads), head % survey.nHeads, i - reach, value];
          }
        }
      },
    },
    points: numbers.map((value, i) => ({ x: placeOn(x, i - reach), y: placeOn(y, value), place, panel: i })),
    said: ({ panel }) => `offset ${signed(panel - reach)}: ${percent(numbers[panel])}`,
    sentence: profileSaid(survey.nameOf(place), numbers, reach),
  };
}

/** @param {number} value */
function share(value) {
  return `${Number((value * 100).toPrecision(3))}\u202f%`;
}

/** @param {number} offset */
function signed(offset) {
  return offset > 0 ? `+${offset}` : String(offset).replace("-", "−");
}

/** @param {string} head @param {number[]} numbers @param {number} reach */
function profileSaid(head, numbers, reach) {
  const order = numbers.map((_, i) => i).sort((a, b) => numbers[b] - numbers[a] || Math.abs(a - reach) - Math.abs(b - reach));
  const most = order.slice(0, NAMED).map((i) => `${percent(numbers[i])} at offset ${signed(i - reach)}`);
  const back = numbers.slice(0, reach).reduce((sum, value) => sum + value, 0);
  const ahead = numbers.slice(reach + 1).reduce((sum, value) => sum + value, 0);
  return `Head ${head} has most of its attention near these places: ${most.join(", ")}; up to ${reach} tokens back it gives ${percent(back)}, up to ${reach} ahead ${percent(ahead)}.`;
}
