/** What the model says, as bars: before and after the edits, and what a draw makes of it. */

import { segments } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { percent, visible } from "../core/text/text.js";
import { difference } from "../marks/cards.js";
import { predictionRows } from "./numbers.js";

/** Tokens of each of the two. */
const MOST = 5;

/**
 * @typedef {import("../engine/engine.js").Prediction} Prediction
 *
 * @typedef {object} Shown
 * @property {Prediction[]} before
 * @property {Prediction[] | null} after
 * @property {number} place  index of the prediction that is shown
 * @property {number | null} word  id of the token that is asked about
 * @property {import("../engine/engine.js").Step | null} step
 * @property {string} why  why there is none
 */

/**
 * @param {(place: number) => void} choosePlace  position of a token
 * @param {(id: number) => void} chooseWord
 */
export function createPrediction(choosePlace, chooseWord) {
  const title = element("h2", {}, ["Prediction"]);
  const places = element("div", { class: "live-places" });
  const list = element("ul", { class: "live-bars" });
  const key = element("p", { class: "live-key" });
  const root = element("section", { class: "live-card live-prediction", "aria-label": "Prediction" }, [title, places, list, key]);
  return {
    root,
    /** @param {Shown} shown */
    update({ before, after, place, word, step, why }) {
      const none = !before.length;
      key.textContent = none ? why : keyOf(after !== null, step !== null);
      places.replaceChildren(...(before.length > 1 ? [placesOf(before, place, choosePlace)] : []));
      if (none) return list.replaceChildren();
      const rows = predictionRows(before[place].candidates, after && (after[place]?.candidates ?? []), MOST);
      const least = leastOf(before[place], after?.[place]);
      const most = Math.max(0.2, ...rows.flatMap((row) => [row.before ?? 0, row.after ?? 0, drawnOf(step, row.id) ?? 0]));
      const asked = word !== null && rows.some(({ id }) => id === word) ? word : rows[0].id;
      const focused = [...list.querySelectorAll("button")].findIndex((one) => one === list.ownerDocument.activeElement);
      list.replaceChildren(...rows.map((row) => barOf(row, { most, least, asked: row.id === asked, edited: after !== null, drawn: drawnOf(step, row.id), next: step?.chosen.id === row.id }, chooseWord)));
      if (focused >= 0) list.querySelectorAll("button")[Math.min(focused, rows.length - 1)]?.focus();
      return undefined;
    },
  };
}

/**
 * @param {boolean} edited
 * @param {boolean} sampled
 */
function keyOf(edited, sampled) {
  const bars = edited ? "Pale: before. Full: with your changes." : "How probable the model finds each.";
  return sampled ? `${bars} Line below: the probability to be drawn.` : bars;
}

/**
 * @param {Prediction[]} all
 * @param {number} place
 * @param {(position: number) => void} choose
 */
function placesOf(all, place, choose) {
  const choices = all.map(({ position }, i) => ({ id: String(position), label: `${i + 1}`, name: `Masked word ${i + 1}` }));
  const made = segments(choices, (id) => choose(Number(id)), "Masked word");
  made.show(String(all[place].position));
  return made.root;
}

/** @param {Prediction} before @param {Prediction} [after] */
function leastOf(before, after) {
  const last = (/** @type {Prediction | undefined} */ one) => one?.candidates.at(-1)?.prob ?? 0;
  return { before: last(before), after: last(after) };
}

/**
 * @param {import("../engine/engine.js").Step | null} step
 * @param {number} id
 */
function drawnOf(step, id) {
  const at = step ? step.candidates.findIndex((one) => one.id === id) : -1;
  return step && at >= 0 ? step.drawn[at] : null;
}

/**
 * @param {import("./numbers.js").Row} row
 * @param {{most: number, least: {before: number, after: number}, asked: boolean, edited: boolean,
 *   drawn: number | null, next: boolean}} about
 * @param {(id: number) => void} choose
 */
function barOf(row, { most, least, asked, edited, drawn, next }, choose) {
  const name = element("button", { type: "button", class: "live-word", "aria-pressed": String(asked), title: "Ask which head matters for this" }, [
    element("bdi", {}, [visible(row.text.replace(/^ /, "·"), 24)]),
  ]);
  name.addEventListener("click", () => choose(row.id));
  const fills = [fillOf("before", row.before, most), ...(edited ? [fillOf("after", row.after, most)] : []), ...(drawn === null ? [] : [fillOf("drawn", drawn, most)])];
  const track = element("span", { class: "live-track", "aria-hidden": "true" }, fills);
  /** @type {(Node | string)[]} */
  const numbers = [numberOf("before", row.before, least.before)];
  if (edited) {
    numbers.push(" → ", numberOf("after", row.after, least.after));
    const known = row.before !== null && row.after !== null;
    numbers.push(element("span", { class: "live-change" }, [known ? difference(/** @type {number} */ (row.after), /** @type {number} */ (row.before)) : ""]));
  } else if (drawn !== null) numbers.push(element("span", { class: "live-change" }, [`drawn ${percent(drawn)}`]));
  const item = element("li", { class: `live-bar${edited ? " edited" : ""}${next ? " next" : ""}` }, [name, track, element("span", { class: "live-numbers" }, numbers)]);
  item.dataset.id = String(row.id);
  return item;
}

/**
 * @param {string} kind
 * @param {number | null} prob
 * @param {number} most
 */
function fillOf(kind, prob, most) {
  const fill = element("span", { class: `live-fill ${kind}` });
  fill.style.width = `${((prob ?? 0) / most) * 100}%`;
  return fill;
}

/**
 * @param {string} kind
 * @param {number | null} prob
 * @param {number} least  of those that are known
 */
function numberOf(kind, prob, least) {
  const text = prob === null ? `<\u202f${percent(least)}` : percent(prob);
  const made = element("data", { value: prob === null ? "" : String(prob) }, [text]);
  made.dataset.of = kind;
  return made;
}
