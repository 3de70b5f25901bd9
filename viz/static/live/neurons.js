/** Neurons of an MLP: the largest of the chosen token, or one by its number. */

import { button, group, menu, segments } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { signColor } from "../core/draw/colors.js";
import { tokenName } from "../core/text/text.js";
import { written } from "../core/text/numbers.js";

/** How many are listed. */
const LISTED = 8;

/**
 * @typedef {object} Shown
 * @property {import("../core/data/data.js").Tokens} tokens
 * @property {number} layer
 * @property {number} position  of the token
 * @property {ArrayLike<number>} values  of all neurons there
 * @property {(neuron: number, position: number | null) => boolean} edited
 * @property {"light" | "dark"} theme
 */

/**
 * @param {number} layers
 * @param {number} neurons
 * @param {{layer: (layer: number) => void, change: (layer: number, neuron: number, position: number | null) => void}} acts
 */
export function createNeurons(layers, neurons, acts) {
  let everywhere = true;
  let shown = /** @type {Shown | null} */ (null);
  const change = (/** @type {number} */ neuron) => shown && acts.change(shown.layer, neuron, everywhere ? null : shown.position);
  const options = Array.from({ length: layers }, (_, layer) => /** @type {[string, string]} */ ([String(layer), String(layer)]));
  const layer = menu("Layer of the MLP", options, (value) => acts.layer(Number(value)));
  const reach = segments([{ id: "all", label: "all tokens" }, { id: "one", label: "this token" }], (id) => {
    everywhere = id === "all";
    show();
  }, "Where a neuron is changed");
  const number = element("input", { type: "number", class: "live-number", min: "0", max: String(neurons - 1), step: "1", placeholder: `0–${neurons - 1}`, "aria-label": "Number of a neuron" });
  const byNumber = button("change", () => number.value !== "" && number.checkValidity() && change(Number(number.value)), { class: "live-act", "aria-label": "Change the neuron of this number" });
  number.addEventListener("keydown", (event) => {
    if (event.key === "Enter") byNumber.click();
  });
  const title = element("p", { class: "live-key" });
  const list = element("ul", { class: "live-neurons" });
  const controls = element("div", { class: "live-row" }, [
    group("Layer", [element("div", { class: "stepper" }, [layer])]),
    group("At", [reach.root]),
    group("By number", [number, byNumber]),
  ]);
  const root = element("div", { class: "live-panel" }, [controls, title, list]);
  const show = () => {
    reach.show(everywhere ? "all" : "one");
    if (!shown) return;
    const { tokens, position, values, edited, theme } = shown;
    layer.value = String(shown.layer);
    title.textContent = `The largest of ${values.length} neurons at “${tokenName(tokens, position)}”. A click changes one.`;
    const largest = largestOf(values, LISTED);
    const most = Math.abs(values[largest[0]]) || 1;
    const focused = [...list.querySelectorAll("button")].findIndex((one) => one === list.ownerDocument.activeElement);
    list.replaceChildren(...largest.map((neuron) => {
      const is = edited(neuron, everywhere ? null : position);
      const fill = element("span", { class: "live-fill after" });
      fill.style.width = `${(Math.abs(values[neuron]) / most) * 100}%`;
      fill.style.background = signColor(values[neuron], theme);
      const name = button(String(neuron), () => change(neuron), { class: "live-word", "aria-pressed": String(is), "aria-label": `Neuron ${neuron}, ${written(values[neuron], 2)}` });
      return element("li", { class: "live-bar" }, [name, element("span", { class: "live-track", "aria-hidden": "true" }, [fill]), element("data", { class: "live-numbers", value: String(values[neuron]) }, [written(values[neuron], 2)])]);
    }));
    if (focused >= 0) list.querySelectorAll("button")[focused]?.focus();
  };
  return {
    root,
    /** @param {Shown} now */
    update(now) {
      shown = now;
      show();
    },
  };
}

/**
 * The places of the largest values in size.
 *
 * @param {ArrayLike<number>} values
 * @param {number} count
 */
export function largestOf(values, count) {
  const places = Array.from({ length: values.length }, (_, i) => i);
  return places.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b).slice(0, count);
}
