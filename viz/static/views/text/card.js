/** The text view in numbers, and how to read it. */

import { largest } from "../../core/data/attention.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { percent } from "../../core/text/text.js";
import { bar } from "../../marks/bars.js";
import { createRamp, facts, KEYS, legendOf } from "../../marks/cards.js";

/**
 * @typedef {import("../../core/data/data.js").Tokens} Tokens
 * @typedef {import("../../core/data/shading.js").Measure} Measure
 *
 * @typedef {object} Scene  what the card is about
 * @property {Measure} measure
 * @property {string} name  of the measure, where it is not attention
 * @property {string} where  layer and heads, in words
 * @property {Tokens} tokens  those that are shaded
 * @property {Tokens} others  those that a chosen token is one of
 * @property {number | null} chosen  among the others
 * @property {boolean} choice  of relevance, another one can be chosen
 * @property {number | null} pointed  among those that are shaded
 * @property {import("../../core/data/shading.js").Shading} shading
 * @property {Uint8Array} takesPart  1 where a shaded token does
 * @property {string} color
 * @property {string} below  the colour of numbers below zero
 */

const WRITTEN = 5;
const LEAST = 0.0005;

/**
 * A number of a measure as it is written.
 *
 * @param {Measure} measure
 * @param {number} value
 */
export function written(measure, value) {
  if (measure === "relevance") return value.toPrecision(3).replace("-", "\u2212");
  return value < 0.00995 ? `${(100 * value).toFixed(2)}\u202f%` : percent(value);
}

/**
 * @param {HTMLElement} card
 * @param {Scene} scene
 */
export function showCard(card, scene) {
  const { measure, chosen, pointed, where } = scene;
  const needsChoice = (measure === "from" || measure === "to") && chosen === null;
  const shows = needsChoice ? "hint" : pointed === null ? "tokens" : "number";
  card.dataset.shows = shows;
  const parts = { hint, tokens: list, number: single }[shows](scene);
  card.replaceChildren(element("p", { class: "where" }, [where]), ...parts);
}

/** @param {Scene} scene */
function hint({ measure }) {
  const does = measure === "from" ? "where it looks" : "who looks at it";
  return [element("p", { class: "hint" }, [`Point at a token to see ${does}. Click it to keep it.`])];
}

/** @param {Scene} scene @returns {(Node | string)[]} */
function title({ measure, name, others, chosen }) {
  if (measure === "relevance") return named(name, others, chosen);
  if (measure === "received" || chosen === null) return ["Attention received"];
  return [tokenChip(others, chosen, 40), measure === "from" ? " looks at" : " is looked at by"];
}

/**
 * What the shades are, and for the output of which token.
 *
 * @param {string} name
 * @param {Tokens} others
 * @param {number | null} chosen
 */
function named(name, others, chosen) {
  return chosen === null ? [name] : [name, " for ", tokenChip(others, chosen, 40)];
}

/** @param {Scene} scene */
function list(scene) {
  const { measure, tokens, shading, color, below } = scene;
  const sizes = shading.values.map(Math.abs);
  const places = largest(sizes, WRITTEN, measure === "relevance" ? 0 : LEAST);
  const most = sizes[places[0]] || 1;
  const rows = places.map((i) => {
    const size = measure === "relevance" ? sizes[i] / most : sizes[i];
    const shade = shading.values[i] < 0 ? below : color;
    return bar(tokenChip(tokens, i, 40), size, { color: shade, number: number(measure, shading.values[i]) });
  });
  const rest = rows.length ? element("ul", { class: "bars" }, rows) : element("p", { class: "hint" }, [nothing(scene)]);
  return [element("h2", {}, title(scene)), rest];
}

/** @param {Scene} scene */
function nothing({ where }) {
  return where.includes("no head") ? "No head is switched on." : "No weight that is shown here.";
}

/**
 * @param {Measure} measure
 * @param {number} value
 * @param {string} [kind]
 */
function number(measure, value, kind = "") {
  return element("data", { class: kind, value: String(value) }, [written(measure, value)]);
}

/** @param {Scene} scene */
function single(scene) {
  const { measure, name, tokens, others, chosen, shading, takesPart } = scene;
  const index = /** @type {number} */ (scene.pointed);
  const here = tokenChip(tokens, index, 40);
  const heading = {
    received: () => [here, " is looked at"],
    from: () => [tokenChip(others, Number(chosen), 40), " looks at ", here],
    to: () => [here, " looks at ", tokenChip(others, Number(chosen), 40)],
    relevance: () => [here, " · ", ...named(name, others, chosen)],
  }[measure]();
  if (!takesPart[index]) {
    return [element("h2", {}, heading), element("p", { class: "hint" }, ["It takes no part in what is shown here."])];
  }
  const count = takesPart.reduce((sum, one) => sum + one, 0);
  const own = Math.abs(shading.values[index]);
  const rank = 1 + shading.values.filter((value, i) => takesPart[i] && Math.abs(value) > own).length;
  const pairs = [
    ["token", String(index)],
    ["rank", `${rank} of ${count}`],
  ];
  if (measure === "received" || measure === "from") pairs.push(["even share", written(measure, 1 / takesPart.length)]);
  return [element("h2", {}, heading), number(measure, shading.values[index], "big"), facts(pairs)];
}

/**
 * @param {import("../../core/data/example.js").Example} example
 * @returns {{root: HTMLElement, update: (scene: Scene, ramp: string) => void}}
 */
export function createTextLegend(example) {
  const says = element("p");
  const ramp = createRamp();
  const norm = element("p", { class: "text-norm" });
  const root = legendOf([says, ...ramp.parts, norm], KEYS);
  return {
    root,
    update(scene, colors) {
      const { measure, shading } = scene;
      const { scale } = shading;
      says.textContent = meaning(scene, example);
      const marks = measure === "relevance" ? [-scale, 0, scale] : [0, scale / 2, scale];
      const shown = scale > 0;
      for (const part of [...ramp.parts, norm]) part.hidden = !shown;
      ramp.show(colors, marks.map((mark) => (mark ? written(measure, mark) : "0")));
      norm.textContent = normalisation(scene);
    },
  };
}

/**
 * @param {Scene} scene
 * @param {import("../../core/data/example.js").Example} example
 */
function meaning({ measure, name, chosen, choice, takesPart }, { causal, normalised }) {
  const sum = normalised ? " In each head these weights add up to 100\u202f%." : "";
  const even = normalised ? ` Were all looked at alike, each would get ${written("received", 1 / takesPart.length)}.` : "";
  const ahead = causal ? " This model reads in one direction: a token looks at itself and back." : "";
  return {
    received: `The stronger a token’s shade, the more it is looked at: the mean over the tokens that look.${even}${ahead}`,
    from: `The stronger a token’s shade, the more the chosen one looks at it.${sum}${ahead}`,
    to: `The stronger a token’s shade, the more it looks at the chosen one. These weights belong to different tokens and have no fixed sum.${ahead}`,
    relevance: `The stronger the shade, the more the token counts in “${name}”${chosen === null ? "" : " for the output of one token"}: blue above zero, orange below.${choice ? " Click a token to choose it." : ""}`,
  }[measure];
}

/** @param {Scene} scene */
function normalisation({ measure, shading, chosen }) {
  const largestOf = measure === "relevance" ? "the largest size" : "the largest";
  const rest = shading.above ? " Others above it have it too." : "";
  const rounded = measure === "relevance" ? "" : " Weights are rounded by up to 0.4\u202f%, those under 1\u202f% by less than 0.04\u202f%.";
  const one = measure === "relevance" && chosen !== null ? "another" : "an";
  return `The strongest shade is ${largestOf} of ${one} ordinary token here, ${written(measure, shading.scale)}.${rest}${rounded}`;
}
