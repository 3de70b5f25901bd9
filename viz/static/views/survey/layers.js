/** The figures that show numbers of all heads by layer: masses, entropy, gradients, norms. */

import { segments } from "../../core/draw/controls.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { layerPanels, meanOf } from "../../marks/layer_dots.js";
import { largest, textOf, withInterval } from "./data.js";

/**
 * @typedef {import("./data.js").Survey} Survey
 * @typedef {import("./data.js").Measure} Measure
 * @typedef {Measure & {title: string}} Titled
 * @typedef {import("./section.js").Part} Part
 */

/** The kinds of tokens, with the measure of attention on each. */
const KINDS = { to_cls: "[CLS]", to_sep: "[SEP]", to_punctuation: "punctuation" };
const PLACES = { to_previous: "the token before", to_next: "the token behind", to_self: "the token itself" };
/** @type {Record<string, string>} */
const TITLES = { to_first: "the first token", ...KINDS, ...PLACES };
/** Before the name of a measure: how much the loss changes with one of its weights. */
const GRADIENT = "gradient_";

/**
 * The parts that this survey has the measures for.
 *
 * @param {Survey} survey
 * @param {import("./state.js").Store} store
 * @returns {Part[]}
 */
export function layerParts(survey, store) {
  const special = survey.found("to_cls") || !survey.byName.has("to_first");
  const masses = titled(survey, special ? KINDS : { to_first: TITLES.to_first, ...KINDS });
  // The first token may be punctuation, and then what is left is not known.
  const rest = special ? everythingElse(survey, masses) : null;
  const entropy = titled(survey, { entropy: "entropy of all rows", entropy_cls: "entropy of the rows of [CLS]" });
  return [
    part(survey, "tokens-by-layer", "What attention goes to", rest ? [...masses, rest] : masses, mostSaid),
    part(survey, "places-by-layer", "The token before, behind, and itself", titled(survey, PLACES), mostSaid),
    part(survey, "entropy-by-layer", "How broad attention is", entropy, broadSaid),
    gradientPart(survey, store),
    normPart(survey, store),
  ].flatMap((one) => (one ? [one] : []));
}

/**
 * @param {Survey} survey
 * @param {Record<string, string>} titles
 * @returns {Titled[]}
 */
function titled(survey, titles) {
  return Object.entries(titles).flatMap(([name, title]) => {
    const measure = survey.found(name);
    return measure ? [{ ...measure, title }] : [];
  });
}

/**
 * What is left of each head's attention beside these kinds of tokens.
 *
 * @param {Survey} survey
 * @param {Titled[]} kinds
 * @returns {Titled | null}
 */
function everythingElse({ size }, kinds) {
  if (!kinds.length) return null;
  const mean = Array.from({ length: size }, (_, place) => kinds.reduce((left, one) => left - (one.mean[place] ?? 0), 1));
  const none = mean.map(() => null);
  const examples = mean.map(() => []);
  return { ...kinds[0], name: "everything_else", title: "all other tokens", words: "what is left", mean, low: none, high: none, examples };
}

/**
 * @param {Survey} survey
 * @param {string} id
 * @param {string} heading
 * @param {Titled[]} panels
 * @param {(survey: Survey, panels: Titled[]) => string} say
 * @returns {Part | null}
 */
function part(survey, id, heading, panels, say) {
  if (!panels.length) return null;
  const sentence = say(survey, panels);
  return { id, heading, draw: (look) => ({ ...panelsDrawing(survey, id, panels, look), sentence }) };
}

/**
 * @param {Survey} survey
 * @param {string} name
 * @param {Titled[]} panels
 * @param {import("./section.js").Look} look
 * @returns {Omit<import("./section.js").Drawing, "sentence">}
 */
export function panelsDrawing(survey, name, panels, { width, theme, colors, state }) {
  const { nLayers, nHeads } = survey;
  const color = signColor(1, theme);
  const text = (/** @type {number} */ value, unit = "") => (unit === "share" ? `${Number((value * 100).toPrecision(3))}\u202f%` : `${value}${unit === "nats" ? " nats" : ""}`);
  const plot = layerPanels({ width, panels, nLayers, nHeads, chosen: state.place, color, colors, text });
  return {
    figure: {
      name,
      width: plot.width,
      height: plot.height,
      paper: colors.paper,
      paint: plot.paint,
      columns: ["measure", "layer", "head", "mean", "low", "high", "documents"],
      *rows() {
        for (const { name: measure, mean, low, high, documents } of panels) {
          for (const [place, value] of mean.entries()) {
            const [layer, head] = [Math.floor(place / nHeads), place % nHeads];
            yield [measure, layer, head, value ?? "", low[place] ?? "", high[place] ?? "", documents];
          }
        }
      },
    },
    points: plot.points,
    said: ({ place, panel }) => `${panels[panel].title} ${withInterval(panels[panel], place)}`,
  };
}

/**
 * @param {Survey} survey
 * @param {Titled[]} panels
 */
function mostSaid(survey, panels) {
  const parts = panels.filter(({ name }) => name !== "everything_else").map(({ title, mean, unit }) => {
    const best = largest(mean);
    const layer = topLayer(survey, mean);
    const average = layerMean(survey, mean, layer);
    return `${title} in head ${survey.nameOf(best)} (${textOf(mean[best], unit)}) and layer ${layer} (${textOf(average, unit)} on average)`;
  });
  return `Most attention goes to ${parts.join(", to ")}.`;
}

/**
 * @param {Survey} survey
 * @param {Titled[]} panels
 */
function broadSaid(survey, [{ mean, unit }]) {
  const [broad, narrow] = [topLayer(survey, mean), topLayer(survey, mean, -1)];
  const [most, least] = [largest(mean), largest(mean, (value) => -value)];
  const of = (/** @type {number} */ layer) => textOf(layerMean(survey, mean, layer), unit);
  return `Attention is broadest in layer ${broad} (${of(broad)} on average) and narrowest in layer ${narrow} (${of(narrow)}); of all heads ${survey.nameOf(most)} is the broadest (${textOf(mean[most], unit)}) and ${survey.nameOf(least)} the narrowest (${textOf(mean[least], unit)}).`;
}

/**
 * @param {Survey} survey
 * @param {(number | null)[]} mean
 * @param {number} layer
 */
function layerMean({ nHeads }, mean, layer) {
  return meanOf(mean.slice(layer * nHeads, (layer + 1) * nHeads));
}

/**
 * @param {Survey} survey
 * @param {(number | null)[]} mean
 * @param {1 | -1} [sign]  -1: the layer with the smallest mean
 */
function topLayer(survey, mean, sign = 1) {
  return largest(Array.from({ length: survey.nLayers }, (_, layer) => layerMean(survey, mean, layer)), (value) => sign * value);
}

/**
 * The names of the measures that are there plain and by norm.
 *
 * @param {Survey} survey
 */
export function comparable(survey) {
  return kindsWith(survey, (name) => survey.byNorm(name));
}

/**
 * The names of the measures that are there with their gradients.
 *
 * @param {Survey} survey
 */
export function differentiated(survey) {
  return kindsWith(survey, (name) => survey.found(GRADIENT + name));
}

/**
 * The kinds of keys that are there with another measure. Where there is a [CLS] it is the first token.
 *
 * @param {Survey} survey
 * @param {(name: string) => unknown} other
 */
function kindsWith(survey, other) {
  const twice = survey.found("to_cls") ? "to_first" : "";
  return Object.keys(TITLES).filter((name) => name !== twice && survey.found(name) && other(name));
}

/**
 * Attention beside the change of the loss with it, as figures 2 and 4 of Clark et al. 2019.
 *
 * @param {Survey} survey
 * @param {import("./state.js").Store} store
 * @returns {Part | null}
 */
function gradientPart(survey, store) {
  const names = differentiated(survey);
  if (!names.length) return null;
  const choice = segments(names.map((id) => ({ id, label: TITLES[id] })), (changed) => store.set({ changed }), "Attention on");
  return {
    id: "gradients-by-layer",
    heading: "How much a change would matter",
    controls: [choice.root],
    update: ({ changed }) => choice.show(changed),
    draw: (look) => gradientDrawing(survey, look),
  };
}

/**
 * @param {Survey} survey
 * @param {import("./section.js").Look} look
 * @returns {import("./section.js").Drawing}
 */
export function gradientDrawing(survey, look) {
  const name = look.state.changed;
  const panels = titled(survey, {
    [name]: `attention to ${TITLES[name]}`,
    [GRADIENT + name]: "change of the loss with it",
    [`${GRADIENT}to_any`]: "with attention to any token",
  });
  return { ...panelsDrawing(survey, "gradients-by-layer", panels, look), sentence: changeSaid(survey, TITLES[name], panels) };
}

/**
 * @param {Survey} survey
 * @param {string} title
 * @param {Titled[]} panels
 */
function changeSaid(survey, title, [mass, gradient]) {
  const [attended, sensitive] = [mass, gradient].map(({ mean }) => topLayer(survey, mean));
  const change = (/** @type {number} */ layer) => textOf(layerMean(survey, gradient.mean, layer), gradient.unit);
  const share = textOf(layerMean(survey, mass.mean, attended), mass.unit);
  const most = attended === sensitive ? ", the most of all layers" : `; it changes most in layer ${sensitive}, by ${change(sensitive)}`;
  return `Attention to ${title} is largest in layer ${attended} (${share} on average). There the loss changes by ${change(attended)} nats for each unit that one such weight changes${most}.`;
}

/**
 * @param {Survey} survey
 * @param {import("./state.js").Store} store
 * @returns {Part | null}
 */
function normPart(survey, store) {
  const names = comparable(survey);
  if (!names.length) return null;
  const choice = segments(names.map((id) => ({ id, label: TITLES[id] })), (compared) => store.set({ compared }), "Attention on");
  /** @param {string} name @returns {Titled[]} */
  const both = (name) => [
    { .../** @type {Measure} */ (survey.found(name)), title: `attention to ${TITLES[name]}` },
    { .../** @type {Measure} */ (survey.byNorm(name)), title: "weighed by norms" },
  ];
  return {
    id: "plain-and-by-norm",
    heading: "Weighed by what each token adds",
    controls: [choice.root],
    update: ({ compared }) => choice.show(compared),
    draw(look) {
      const panels = both(look.state.compared);
      const [plain, weighed] = panels.map(({ mean }) => textOf(meanOf(mean), "share"));
      const sentence = `On average heads give ${TITLES[look.state.compared]} ${plain} of their attention, and ${weighed} when each weight is multiplied by the length of the vector that it brings in.`;
      return { ...panelsDrawing(survey, "plain-and-by-norm", panels, look), sentence };
    },
  };
}
