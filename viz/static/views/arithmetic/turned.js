/**
 * The steps that not every model has: turned by position (rotary), squeezed by a soft cap.
 *
 * @import { Story } from "./story.js"
 */

import { productApart, unturned } from "../../core/data/rotation.js";
import { sumsOf, vectorOf } from "../../core/data/softmax.js";
import { element } from "../../core/draw/dom.js";
import { signColor } from "../../core/draw/colors.js";
import { counted, written } from "../../core/text/numbers.js";
import { numeral } from "../../marks/cards.js";
import { formula, step, words } from "./parts.js";
import { side } from "./story.js";

/** Distances in tokens that are compared with the pair's own. */
const DISTANCES = [0, 1, 2, 4, 8, 16, 32];

/**
 * What turning by position makes of the product: that of the same two tokens, not turned and further
 * apart or nearer.
 *
 * @param {Story} story
 * @returns {HTMLElement[]}
 */
export function turned({ vectors, row, key, products, theme }) {
  const { rotary, width } = vectors;
  if (!rotary) return [];
  const [query, keyed] = [vectorOf(vectors.query, row.query, width), vectorOf(vectors.key, key, width)];
  const plain = unturned(keyed, rotary, key);
  const before = unturned(query, rotary, row.query).reduce((sum, value, i) => sum + value * plain[i], 0);
  const own = row.query - key;
  const sign = own < 0 ? -1 : 1;
  const apart = [...new Set([...DISTANCES, Math.abs(own)])].sort((a, b) => a - b);
  const found = apart.map((distance) => ({
    distance,
    product: productApart(query, keyed, rotary, { at: row.query, keyAt: key, apart: sign * distance }),
  }));
  const largest = Math.max(...found.map(({ product }) => Math.abs(product))) || 1;
  const bars = found.map(({ distance, product }) => {
    const here = distance === Math.abs(own) ? ", as here" : "";
    const bar = side(`${distance} apart${here}`, product, Math.abs(product) / largest, signColor(product, theme));
    bar.dataset.apart = String(distance);
    return bar;
  });
  const turnedSide = 2 * rotary.frequencies.length;
  const how = turnedSide < width ? `The first ${turnedSide} of ${width} numbers of query and key` : "Query and key";
  return [
    step("turn", "Turned by position", [
      words(`${how} are shown after rotation: two and two were turned by position × frequency. The same pair of tokens at another distance gives another product; here the key stands ${own ? `${counted(Math.abs(own), "token")} ${own > 0 ? "behind" : "ahead"}` : "where the query stands"}.`),
      formula("not turned: _q_ · _k_ = ", numeral("unturned", before), "; turned: _q_ · _k_ = ", numeral("turned", sumsOf(products).all)),
      element("ul", { class: "bars sum-sides" }, bars),
    ]),
  ];
}

/**
 * @param {Story} story
 * @returns {HTMLElement[]}
 */
export function cap({ vectors: { softCap }, row, key }) {
  if (!softCap) return [];
  const most = written(softCap, 0);
  return [
    step("cap", "Soft cap", [
      formula("_capped score_ = ", `${most} × tanh(`, numeral("before-cap", row.scores[key]), ` / ${most}) = `, numeral("capped", row.capped[key])),
      words(`Scores are squeezed into −${most} to ${most}: small ones stay nearly as they are, none grows beyond.`),
    ]),
  ];
}
