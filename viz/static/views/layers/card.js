/** Under the table: the most probable predictions of one cell, and how to read them. */

import { withAlpha } from "../../core/draw/colors.js";
import { strongest } from "../../core/draw/contrast.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { percent } from "../../core/text/text.js";
import { track } from "../../marks/bars.js";
import { legendOf } from "../../marks/cards.js";
import { placeOf } from "./table.js";

export class LayersCard {
  /**
   * @param {import("../../core/data/example.js").Example} example
   * @param {import("../../core/data/data.js").Lens} lens
   */
  constructor({ tokens }, lens) {
    this.tokens = tokens;
    this.lens = lens;
    this.root = element("section", { class: "layers-card", "aria-live": "polite", "aria-label": "Predictions in numbers" });
  }

  /**
   * @param {import("./layers.js").Cell | null} cell
   * @param {"light" | "dark"} theme
   */
  show(cell, theme) {
    if (!cell) {
      const hint = "Point at a cell to see its five most probable tokens. Click it to keep its position.";
      this.root.replaceChildren(element("p", { class: "hint" }, [hint]));
      return;
    }
    const { row, point } = cell;
    const { strings, probs, points } = this.lens;
    const bars = strings[point][row].map((token, i) => bar(token, probs[point][row][i], theme));
    this.root.replaceChildren(
      element("div", { class: "layers-about" }, [
        element("p", { class: "where" }, [placeOf(points, point).words]),
        element("h2", {}, ["at ", tokenChip(this.tokens, row, 24)]),
        element("p", { class: "where" }, [`position ${row}`]),
      ]),
      element("ol", { class: "layers-bars" }, bars),
    );
  }
}

/**
 * @param {string} token
 * @param {number} probability
 * @param {"light" | "dark"} theme
 */
function bar(token, probability, theme) {
  const alone = { text: [token], raw: [null], special: [0], segment: [0], piece: [0] };
  return element("li", { class: "layers-bar" }, [
    element("span", { class: "layers-token" }, [tokenChip(alone, 0, 24)]),
    element("data", { value: String(probability) }, [percent(probability)]),
    track(probability, signColor(1, theme)),
  ]);
}

/**
 * How to read the table.
 *
 * @param {boolean} causal
 */
export function createLayersLegend(causal) {
  const what = causal ? "the token that follows" : "the token that stands there";
  const parts = [
    `Each cell is what the model would predict at that position, ${what}, if it stopped at that layer: its own output head reads what the layer leaves.`,
    "A click on a layer's number opens that layer in the other pictures.",
  ];
  return legendOf(parts, { "← →": "layer", "↑ ↓": "position", Enter: "keep", Esc: "let go" });
}

/**
 * What stands above the table, where it is seen before any of it: rows, columns, shades.
 *
 * @returns {{root: HTMLElement, update: (theme: "light" | "dark") => void}}
 */
export function createLayersKey() {
  const samples = [0.05, 0.25, 0.5, 1];
  const patches = samples.map((sample) => element("li", {}, [`${100 * sample}\u202f%`]));
  const root = element("div", { class: "layers-key" }, [
    element("p", {}, ["A row a token, a column a layer: what the model would say if it stopped there. "]),
    element("ul", { class: "layers-samples", "aria-label": "Shades: how probable it is" }, patches),
    element("p", {}, [element("strong", {}, ["bold"]), ": what the output says too"]),
  ]);
  return {
    root,
    update(theme) {
      const color = signColor(1, theme);
      patches.forEach((patch, i) => {
        patch.style.backgroundColor = withAlpha(color, samples[i] * strongest(color, theme));
      });
    },
  };
}
