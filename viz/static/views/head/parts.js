/** Parts of the head view that know nothing of its state: captions, and what is said in words. */

import { codeOfStrongest, firstCode, weightOf } from "../../core/data/attention.js";
import { element } from "../../core/draw/dom.js";
import { running } from "../../core/text/text.js";

/**
 * The lines with those in front that end at the chosen token, and how many these are; all when
 * none is chosen.
 *
 * @param {Uint32Array} places
 * @param {import("../../core/data/example.js").Layer} layer
 * @param {import("../../core/data/attention.js").Focus} focus
 * @param {number | null} other
 * @returns {{places: Uint32Array, bright: number}}
 */
export function chosenFirst(places, { nQueries, nKeys }, { side }, other) {
  const end = (/** @type {number} */ place) =>
    side === "query" ? place % nKeys : Math.floor(place / nKeys) % nQueries;
  if (other === null) return { places, bright: places.length };
  const front = places.filter((place) => end(place) === other);
  const sorted = Uint32Array.from([...front, ...places.filter((place) => end(place) !== other)]);
  return { places: sorted, bright: front.length };
}

/** Lines of a token that are drawn however faint they are; of a text, one for each token. */
const FEW = 5;

/**
 * The first code that is drawn. The threshold that the page chose itself gives way where it leaves
 * next to nothing.
 *
 * @param {Pick<import("./head.js").Scene, "layer" | "heads" | "shown" | "minimum" | "usual">} scene
 * @param {number} strength
 * @param {import("../../core/data/attention.js").Focus | null} focus
 */
export function leastDrawn({ layer, heads, shown, minimum, usual }, strength, focus) {
  const asked = firstCode(minimum, strength);
  if (!minimum || minimum !== usual) return asked;
  return Math.min(asked, codeOfStrongest(layer, heads, shown, focus ? FEW : layer.nQueries, focus));
}

/**
 * What is to be said of the lines: why there are none, or that they are below the threshold.
 *
 * @param {number} count
 * @param {number[]} heads
 * @param {number} minimum  percent
 * @param {number} least  the first code that is drawn
 */
export function whyFew(count, heads, minimum, least) {
  const reached = weightOf(least) * 100;
  if (count && reached >= minimum) return "";
  if (count) return `Few weights here reach ${minimum}\u202f%: the strongest are drawn, from ${reached.toFixed(1)}\u202f% up.`;
  if (!heads.length) return "No lines: no head is switched on.";
  if (!minimum) return "No lines: every weight that is shown here is too small to see.";
  return `No lines: every weight that is shown here is below ${minimum}\u202f%.`;
}

/**
 * Which tokens stand on which side, as the example's name has it ("decoder → encoder").
 *
 * @param {import("../../core/data/example.js").Example} example
 * @returns {[string, string]}
 */
export function sideNames({ header, tokens, keyTokens }) {
  const [from, to, ...more] = header.name.split(/\s*(?:→|->)\s*/);
  return keyTokens === tokens || !from || !to || more.length ? ["", ""] : [running(from), running(to)];
}

/** @param {import("../../core/data/example.js").Example} example */
export function captions(example) {
  const [from, to] = sideNames(example);
  return element("div", { class: "captions", "aria-hidden": "true" }, [
    element("p", {}, [element("strong", {}, ["the token that looks"]), from ? ` ${from}, query` : " query"]),
    element("p", {}, [element("strong", {}, ["where it looks"]), to ? ` ${to}, key` : " key"]),
  ]);
}

/**
 * @param {import("../../core/data/example.js").Example} one
 * @param {import("../../core/data/example.js").Example} other
 */
export function sameTokens(one, other) {
  const [these, those] = [one, other].map(({ tokens, keyTokens }) => JSON.stringify([tokens.text, keyTokens.text]));
  return these === those;
}
