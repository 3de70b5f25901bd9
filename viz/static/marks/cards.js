/** What the cards beside several pictures have in common: a list of facts, how to read the picture. */

import { element } from "../core/draw/dom.js";

/** What keys do in the pictures of tokens. */
export const KEYS = { "← →": "layer", "↑ ↓": "token", Enter: "keep", Esc: "let go" };

/**
 * @param {string[][]} pairs  of a name and a value
 */
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
  return element("section", { class: "legend", "aria-label": "How to read this picture" }, [
    element("h2", {}, [heading]),
    ...parts.filter(Boolean).map((part) => (typeof part === "string" ? element("p", {}, [part]) : part)),
    element("ul", { class: "keys" }, items),
  ]);
}

/**
 * The scale of a picture's colours, with numbers below it.
 *
 * @param {string} [kind]
 */
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
