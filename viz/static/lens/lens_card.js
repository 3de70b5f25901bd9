/** Under the table: the most probable predictions of one cell, and how to read them. */

import { withAlpha } from "../draw/colors.js";
import { legendOf } from "../draw/cards.js";
import { element, tokenChip } from "../draw/dom.js";
import { placeOf } from "./lens_table.js";
import { signColor } from "../draw/neuron_colors.js";
import { strongest } from "../shaded/shaded_shades.js";
import { percent, tokenText } from "../draw/text.js";

export class LensCard {
  /**
   * @param {import("../data/example.js").Example} example
   * @param {import("../data/data.js").Lens} lens
   */
  constructor({ tokens }, lens) {
    this.tokens = tokens;
    this.lens = lens;
    this.root = element("section", { class: "lens-card", "aria-live": "polite", "aria-label": "Predictions in numbers" });
  }

  /**
   * @param {import("./lens.js").Cell | null} cell
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
      element("div", { class: "lens-about" }, [
        element("p", { class: "where" }, [placeOf(points, point).words]),
        element("h2", {}, ["at ", tokenChip(tokenText(this.tokens, row, 24))]),
        element("p", { class: "where" }, [`position ${row}`]),
      ]),
      element("ol", { class: "lens-bars" }, bars),
    );
  }
}

/**
 * @param {string} token
 * @param {number} probability
 * @param {"light" | "dark"} theme
 */
function bar(token, probability, theme) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.min(probability, 1) * 100}%`;
  fill.style.backgroundColor = signColor(1, theme);
  const shown = tokenText({ text: [token], raw: [null], special: [0], segment: [0], piece: [0] }, 0, 24);
  return element("li", { class: "lens-bar" }, [
    element("span", { class: "lens-token" }, [tokenChip(shown)]),
    element("data", { value: String(probability) }, [percent(probability)]),
    element("span", { class: "track" }, [fill]),
  ]);
}

/**
 * @param {boolean} causal
 * @returns {{root: HTMLElement, update: (theme: "light" | "dark") => void}}
 */
export function createLensLegend(causal) {
  const samples = [0.05, 0.25, 0.5, 1];
  const patches = samples.map((sample) => element("li", {}, [`${100 * sample}\u202f%`]));
  const what = causal ? "the token that follows" : "the token that stands there";
  const parts = [
    `Each cell is what the model would predict at that position, ${what}, if it stopped at that layer: its own output head reads what the layer leaves. The stronger its shade, the more probable its token.`,
    element("ul", { class: "lens-samples" }, patches),
    "Bold: the token that the output gives too. A click on a layer's number opens that layer in the other pictures.",
  ];
  const root = legendOf(parts, { "← →": "layer", "↑ ↓": "position", Enter: "keep", Esc: "let go" });
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
