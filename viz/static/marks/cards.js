/** What the cards beside several pictures have in common: a list of facts, how to read the picture. */
import { weightOf } from "../core/data/attention.js";
import { element } from "../core/draw/dom.js";
import { written } from "../core/text/numbers.js";
import { percent, visible } from "../core/text/text.js";
import { translated } from "../core/text/translated.js";

/** What keys do in the pictures of tokens. */
export const KEYS = { "← →": translated`layer`, "↑ ↓": translated`token`, Enter: translated`keep`, Esc: "let go" };

/** Leads to the arithmetic of a weight, which begins with its reasons. */
export const WHY = "Why does it look there?";

/** @param {(Node | string)[][]} pairs  of a name and a value */
export function facts(pairs) {
  const rows = pairs.flatMap(([name, value]) => [element("dt", {}, [name]), element("dd", {}, [value])]);
  return element("dl", { class: "facts" }, rows);
}

/**
 * @param {(Node | string)[]} parts  those that are "" are left out
 * @param {Record<string, string>} keys  what keys do, by their names
 * @param {string} [heading]
 */
export function legendOf(parts, keys, heading = "How to read this") {
  const items = Object.entries(keys).map(([names, does]) =>
    element("li", {}, [...names.split(" ").map((name) => element("kbd", {}, [name])), ` ${does}`]),
  );
  return element("div", { role: "group", class: "legend", "aria-label": "How to read this picture" }, [
    element("h2", {}, [heading]),
    ...parts.filter(Boolean).map((part) => (typeof part === "string" ? element("p", {}, [part]) : part)),
    element("ul", { class: "keys" }, items),
  ]);
}

/** The scale of a picture's colours, with numbers below it. @param {string} [kind] */
export function createRamp(kind = "") {
  const ramp = element("span", { class: `ramp ${kind}`.trim(), "aria-hidden": "true" });
  const ends = element("p", { class: "ramp-ends" });
  return {
    parts: [ramp, ends],
    /** @param {string} background  a CSS image @param {string[]} marks */
    show(background, marks) {
      ramp.style.background = background;
      ends.replaceChildren(...marks.map((mark) => element("span", {}, [mark])));
    },
  };
}

/** A bar whose length is a part of the whole. @param {number} part @param {string} color  "": that of the style */
export function track(part, color) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${Math.max(0, Math.min(part, 1)) * 100}%`;
  fill.style.backgroundColor = color;
  return element("span", { class: "track", "aria-hidden": "true" }, [fill]);
}

/** A predicted token with its probability, as the parts of a row. @param {{text: string, prob: number}} candidate @param {string} [color] */
export function predicted({ text, prob }, color = "") {
  return [element("bdi", {}, [visible(text.trim(), 20)]), track(prob, color), element("data", { value: String(prob) }, [percent(prob)])];
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

/** A number in large, and how sure it is. @param {number} value @param {string} text @param {string} note */
export function large(value, text, note) {
  const big = element("data", { class: "big", value: String(value) }, [text]);
  return element("p", {}, [big, element("span", { class: "between" }, [note])]);
}

/** Between which weights a rounded one lies. @param {number} code */
export function boundsText(code) {
  const [low, high] = [Math.max(code - 0.5, 0), Math.min(code + 0.5, 255)].map(weightOf);
  const floor = (Math.floor(low * 1000) / 10).toFixed(1);
  const ceiling = (Math.ceil(high * 1000) / 10).toFixed(1);
  return `between ${floor} and ${ceiling}\u202f%`;
}

/** How far a weight is from another, in percentage points. @param {number} weight @param {number} before */
export function difference(weight, before) {
  const points = Math.round((weight - before) * 1000) / 10;
  if (points === 0) return "±0.0";
  return `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
}

/**
 * A number that is shown, with all its digits for whoever asks.
 *
 * @param {string} name
 * @param {number} value
 * @param {string} [text]
 */
export function numeral(name, value, text = written(value)) {
  const made = element("data", { value: String(value) }, [text]);
  made.dataset.name = name;
  return made;
}
