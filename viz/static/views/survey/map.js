/** Heads as points of a plane: the closer two are, the more alike they attend. */

import { segments } from "../../core/draw/controls.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { written } from "../../core/text/numbers.js";
import { percent, running } from "../../core/text/text.js";
import { drawRing } from "../../marks/layer_dots.js";

/** Colours from the first layer to the last. */
const LAYERS = {
  light: ["#3b1f78", "#2f6db0", "#1f9a7a", "#c98900"],
  dark: ["#9a86ff", "#4ea6e6", "#4ed193", "#ffd257"],
};
const [MARGIN, TALLEST, ROW] = [22, 460, 20];

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./state.js").Store} store
 * @returns {import("./section.js").Part | null}
 */
export function mapPart(survey, store) {
  const { distances, patterns } = survey.header;
  if (!distances) return null;
  const choices = [{ id: /** @type {const} */ ("layer"), label: "layer" }, { id: /** @type {const} */ ("pattern"), label: "pattern" }];
  const choice = segments(patterns.length ? choices : choices.slice(0, 1), (colored) => store.set({ colored }), "Map coloured by");
  return {
    id: "map-of-heads",
    heading: "Which heads are alike",
    controls: [choice.root],
    update: ({ colored }) => choice.show(colored),
    draw: (look) => mapDrawing(survey, distances, look),
  };
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {import("./data.js").Distances} distances
 * @param {import("./section.js").Look} look
 * @returns {import("./section.js").Drawing}
 */
function mapDrawing(survey, distances, { width, theme, colors, state }) {
  const { nLayers, nHeads } = survey;
  const kinds = state.colored === "pattern" ? kindsOf(survey) : null;
  const legend = legendOf(survey, kinds, width, theme, colors);
  const [across, up] = [0, 1].map((axis) => distances.points.map((point) => point[axis]));
  const [left, low] = [Math.min(...across), Math.min(...up)];
  const [wide, high] = [Math.max(...across) - left || 1, Math.max(...up) - low || 1];
  const scale = Math.min((width - 2 * MARGIN) / wide, (TALLEST - 2 * MARGIN) / high);
  const shift = (width - wide * scale) / 2;
  const points = distances.points.map(([x, y], place) => ({
    x: shift + (x - left) * scale, y: MARGIN + (high - (y - low)) * scale, place, panel: 0,
  }));
  const bottom = MARGIN * 2 + high * scale;
  const colorOf = (/** @type {number} */ place) =>
    kinds ? kindColor(kinds.of[place], theme, colors) : layerColor(Math.floor(place / nHeads), nLayers, theme);
  return {
    figure: {
      name: "map-of-heads",
      width,
      height: bottom + legend.height,
      paper: colors.paper,
      paint(pen) {
        // The chosen head last, so that no other hides it.
        for (const { x, y, place } of [...points].sort((a, b) => Number(a.place === state.place) - Number(b.place === state.place))) {
          if (place === state.place) {
            drawRing(pen, x, y, colors);
            const end = x > width - 60;
            pen.text(x + (end ? -11 : 11), y + 4, survey.nameOf(place), { size: 12, color: colors.ink, bold: true, anchor: end ? "end" : "start" });
          }
          pen.dot(x, y, 4, colorOf(place), 0.9);
        }
        legend.paint(pen, bottom);
      },
      columns: ["layer", "head", "x", "y", "pattern"],
      *rows() {
        const { of, names } = kindsOf(survey);
        for (const [place, [x, y]] of distances.points.entries()) {
          yield [Math.floor(place / nHeads), place % nHeads, x, y, of[place] < 0 ? "" : names[of[place]]];
        }
      },
    },
    points,
    said: ({ place }) => patternText(survey, place),
    sentence: mapSaid(distances),
  };
}

/**
 * The pattern of each head: the one with the highest score of those that name it, or -1.
 *
 * @param {import("./data.js").Survey} survey
 */
function kindsOf({ header: { patterns }, size }) {
  /** @type {number[]} */
  const of = Array.from({ length: size }, () => -1);
  patterns.forEach(({ heads, score }, number) => {
    for (const { place, named } of heads) {
      const there = of[place] < 0 ? -1 : patterns[of[place]].score[place] ?? -1;
      if (named && (score[place] ?? 0) > there) of[place] = number;
    }
  });
  return { of, names: patterns.map(({ name }) => name) };
}

/** @param {import("./data.js").Survey} survey @param {number} place */
function patternText({ header: { patterns } }, place) {
  const found = patterns.filter(({ heads }) => heads.some((one) => one.named && one.place === place));
  return found.length ? `looks at ${found.map(({ words }) => running(words)).join("; at ")}` : "known by no pattern";
}

/**
 * @param {number} kind
 * @param {"light" | "dark"} theme
 * @param {import("../../marks/axes.js").Colors} colors
 */
function kindColor(kind, theme, { faint }) {
  return kind < 0 ? faint : headColor(kind, theme);
}

/**
 * @param {number} layer
 * @param {number} nLayers
 * @param {"light" | "dark"} theme
 */
export function layerColor(layer, nLayers, theme) {
  const stops = LAYERS[theme].map(channels);
  const at = nLayers > 1 ? (layer / (nLayers - 1)) * (stops.length - 1) : 0;
  const below = Math.min(Math.floor(at), stops.length - 2);
  const mixed = stops[below].map((value, i) => Math.round(value + (stops[below + 1][i] - value) * (at - below)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * What the colours mean, in as many columns as there is room for.
 *
 * @param {import("./data.js").Survey} survey
 * @param {{of: number[], names: string[]} | null} kinds
 * @param {number} width
 * @param {"light" | "dark"} theme
 * @param {import("../../marks/axes.js").Colors} colors
 */
function legendOf({ nLayers }, kinds, width, theme, colors) {
  const entries = kinds
    ? [...kinds.names.keys(), -1].filter((kind) => kinds.of.includes(kind)).map((kind) => ({
      color: kindColor(kind, theme, colors), text: kind < 0 ? "none of these" : kinds.names[kind].replaceAll("_", " "),
    }))
    : Array.from({ length: nLayers }, (_, layer) => ({ color: layerColor(layer, nLayers, theme), text: `layer ${layer}` }));
  const column = kinds ? 178 : 74;
  const columns = Math.max(1, Math.floor((width - 8) / column));
  return {
    height: Math.ceil(entries.length / columns) * ROW + 8,
    /** @param {import("../../core/export/figure.js").Pen} pen @param {number} top */
    paint(pen, top) {
      entries.forEach(({ color, text }, i) => {
        const [x, y] = [8 + (i % columns) * column, top + Math.floor(i / columns) * ROW + 8];
        pen.dot(x, y, 4, color);
        pen.text(x + 9, y + 4, text, { size: 12, color: colors.soft });
      });
    },
  };
}

/** @param {import("./data.js").Distances} distances */
function mapSaid({ within, between, nearest, chance, stress }) {
  const near = nearest === null || chance === null ? "" : ` The head most like another is of the same layer in ${percent(nearest)} of cases, by chance in ${percent(chance)}.`;
  const apart = nearest === null ? "Heads" : `Two heads of one layer are ${written(within, 2)} nats apart, two of different layers ${written(between, 2)} (Jensen–Shannon).${near} Heads`;
  return `${apart} are drawn so that their distances are kept as well as a plane can; what it cannot show is its stress, ${written(stress, 2)}.`;
}
