/** What the cards beside several pictures have in common: a list of facts, how to read the picture. */

import { element } from "./dom.js";

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
