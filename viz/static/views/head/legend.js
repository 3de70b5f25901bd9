/** How to read the picture, in the words of someone who sees it for the first time. */

import { lineAlpha } from "../../core/data/attention.js";
import { grouping, windowsOf } from "../../core/data/sharing.js";
import { element } from "../../core/draw/dom.js";
import { percent } from "../../core/text/text.js";
import { KEYS, legendOf } from "../../marks/cards.js";
import { lineWidth } from "./lines.js";

const SAMPLES = [0.05, 0.2, 0.5, 1];
const KEYS_OF_TEXTS = { "N P": "next, previous text" };
const AHEAD = "This model reads in one direction: a token looks at itself and back.";

/**
 * @param {import("../../core/data/example.js").Example} example
 * @param {number} examples  texts on the page
 * @returns {{root: HTMLElement, setStrength: (strength: number) => void}}
 */
export function createLegend(example, examples) {
  const { causal, normalised } = example;
  const strokes = SAMPLES.map(() => element("span", { class: "stroke" }));
  const samples = SAMPLES.map((weight, i) =>
    element("li", {}, [strokes[i], percent(weight).replace(".0", "")]),
  );
  const parts = [
    "A line is one attention weight: how much the token on the left looks at the token on the right. The stronger and wider the line, the more.",
    element("ul", { class: "samples" }, samples),
    normalised
      ? "The colour is the head. In each head, the weights of a token on the left add up to 100\u202f%."
      : "The colour is the head.",
    "Hiding tokens or weights does not change the others.",
    causal ? AHEAD : "",
    windowsOf(example),
    grouping(example),
  ];
  const root = legendOf(parts, examples > 1 ? { ...KEYS, ...KEYS_OF_TEXTS } : KEYS);
  return {
    root,
    setStrength(strength) {
      SAMPLES.forEach((weight, i) => {
        strokes[i].style.height = `${lineWidth(weight)}px`;
        strokes[i].style.opacity = String(lineAlpha(weight, strength));
      });
    },
  };
}
