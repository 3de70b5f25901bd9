/** A weight in numbers: as a bar with a name, in large, with the bounds of its rounding, and beside another. */

import { boundsOf } from "../core/data/attention.js";
import { element } from "../core/draw/dom.js";
import { percent } from "../core/text/text.js";

/**
 * A bar whose length is a part of the whole.
 *
 * @param {number} part
 * @param {string} color  "": that of the style
 */
export function track(part, color) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.max(0, Math.min(part, 1)) * 100}%`;
  fill.style.backgroundColor = color;
  return element("span", { class: "track", "aria-hidden": "true" }, [fill]);
}

/**
 * @param {Node | string} name
 * @param {number} weight
 * @param {{color?: string, kind?: string, before?: number, number?: Node}} options  before: what it is
 *   compared with; number: what is written, where it is not the weight
 */
export function bar(name, weight, { color = "", kind = "", before, number }) {
  return element("li", { class: `bar ${kind}` }, [
    element("span", { class: "name" }, [name]),
    track(weight, color),
    number ?? element("data", { value: String(weight) }, [percent(weight)]),
    ...(before === undefined ? [] : [element("span", { class: "change" }, [difference(weight, before)])]),
  ]);
}

/**
 * A number in large, and how sure it is.
 *
 * @param {number} value
 * @param {string} text
 * @param {string} note
 */
export function large(value, text, note) {
  const big = element("data", { class: "big", value: String(value) }, [text]);
  return element("p", {}, [big, element("span", { class: "between" }, [note])]);
}

/**
 * Between which weights a rounded one lies.
 *
 * @param {number} code
 */
export function boundsText(code) {
  const [low, high] = boundsOf(code);
  const floor = (Math.floor(low * 1000) / 10).toFixed(1);
  const ceiling = (Math.ceil(high * 1000) / 10).toFixed(1);
  return `between ${floor} and ${ceiling}\u202f%`;
}

/**
 * How far a weight is from another, in percentage points.
 *
 * @param {number} weight
 * @param {number} before
 */
export function difference(weight, before) {
  const points = Math.round((weight - before) * 1000) / 10;
  if (points === 0) return "±0.0";
  return `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
}
