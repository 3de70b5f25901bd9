/** One row of a softmax: where the chosen token looks, in one head. Each bar can be drawn, or cut. */

import { button, group, segments } from "../core/draw/controls.js";
import { element, tokenChip } from "../core/draw/dom.js";
import { percent, tokenName } from "../core/text/text.js";

/**
 * @typedef {"head" | "layer" | "all"} Reach  of a cut: this head, all heads of the layer, all layers
 *
 * @typedef {object} Row
 * @property {import("../core/data/data.js").Tokens} tokens
 * @property {number} layer
 * @property {number} head
 * @property {number} query
 * @property {Float32Array} weights  of its keys
 * @property {number} first  the first key that it may look at
 * @property {number} end  the first one after it that it may not
 * @property {(key: number, reach: Reach) => boolean} cut  whether the key is hidden from it there
 * @property {number[]} set  keys whose weight is set
 *
 * @typedef {object} Acts
 * @property {(row: Row, key: number, weight: number) => void} set
 * @property {(row: Row, key: number, reach: Reach) => void} cut
 */

/** Steps of a bar: tenths of a percent. */
const STEPS = 1000;

/** @param {Acts} acts */
export function createWeights(acts) {
  const title = element("p", { class: "live-key" });
  const list = element("ul", { class: "live-weights" });
  /** @type {Reach} */
  let reach = "head";
  const reaches = segments([{ id: "head", label: "this head" }, { id: "layer", label: "this layer" }, { id: "all", label: "every layer" }], (id) => {
    reach = id;
    show();
  }, "Where an edge is cut");
  const root = element("div", { class: "live-panel" }, [title, list, element("div", { class: "live-row" }, [group("Cut in", [reaches.root])])]);
  let built = "";
  /** @type {{key: number, slider: HTMLInputElement, number: HTMLElement, cut: HTMLElement, item: HTMLElement}[]} */
  let items = [];
  let row = /** @type {Row | null} */ (null);
  const build = (/** @type {Row} */ { tokens, first, end }) => {
    items = Array.from({ length: end - first }, (_, i) => {
      const key = first + i;
      const name = tokenName(tokens, key);
      const slider = element("input", { type: "range", min: "0", max: String(STEPS), step: "1", "aria-label": `Weight of “${name}”` });
      slider.addEventListener("input", () => row && acts.set(row, key, Number(slider.value) / STEPS));
      const number = element("output", { class: "value" });
      const cut = button("cut", () => row && acts.cut(row, key, reach), { class: "live-act", "aria-label": `Cut the edge to “${name}”` });
      const item = element("li", {}, [element("span", { class: "name" }, [tokenChip(tokens, key, 18)]), slider, number, cut]);
      item.dataset.key = String(key);
      return { key, slider, number, cut, item };
    });
    list.replaceChildren(...items.map(({ item }) => item));
  };
  const show = () => {
    reaches.show(reach);
    if (!row) return;
    const now = row;
    const wanted = JSON.stringify([now.tokens.text, now.first, now.end]);
    if (wanted !== built) build(now);
    built = wanted;
    title.textContent = `Layer ${now.layer}, head ${now.head}: where “${tokenName(now.tokens, now.query)}” looks. Draw a bar: the others are scaled. Choose another token above, another head below.`;
    items.forEach(({ key, slider, number, cut, item }) => {
      const step = String(Math.round(now.weights[key] * STEPS));
      if (slider.value !== step && !slider.matches(":active")) slider.value = step;
      number.textContent = percent(now.weights[key]);
      slider.setAttribute("aria-valuetext", `${percent(now.weights[key])}`);
      slider.style.setProperty("--part", `${now.weights[key] * 100}%`);
      const isCut = now.cut(key, reach);
      slider.disabled = isCut;
      cut.setAttribute("aria-pressed", String(isCut));
      item.classList.toggle("changed", isCut || now.set.includes(key));
    });
  };
  return {
    root,
    /** @param {Row} now */
    update(now) {
      row = now;
      show();
    },
  };
}
