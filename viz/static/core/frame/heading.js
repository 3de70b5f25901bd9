/** What stands above a page: its title, its texts, the sizes of the model. */

import { element } from "../draw/dom.js";
import { counted } from "../text/numbers.js";
import { running } from "../text/text.js";

/**
 * The name of the page, for the window.
 *
 * @param {{title: string | null}} header
 * @param {import("../data/example.js").Example} example
 */
export function titleOf(header, { header: { texts, model } }) {
  const title = header.title ?? (texts.map(running).join(" / ") || "Attention");
  return running(`${title} · attention${model ? ` in ${model}` : ""}`);
}

/**
 * What tells the texts of a page apart: their names, or their words, or their places.
 *
 * @param {import("../data/example.js").Example[]} examples
 * @returns {string[]}
 */
export function namesOf(examples) {
  const own = examples.map(({ header: { name } }) => (name ? running(name) : ""));
  const words = examples.map(({ header: { texts } }) => (texts.length ? running(texts.join(" / ")) : ""));
  const named = own.map((name, i) => (name && alone(own, i) ? name : [name, words[i]].filter(Boolean).join(": ")));
  return named.map((name, i) => (name && alone(named, i) ? name : `${name || "Text"} (${i + 1})`));
}

/**
 * What a text is called on its own.
 *
 * @param {import("../data/example.js").Example} example
 */
export function ownName({ header: { name, texts }, index }) {
  return name || running(texts.join(" / ")) || String(index);
}

/**
 * @param {string[]} all
 * @param {number} i
 */
function alone(all, i) {
  return all.every((other, j) => j === i || other !== all[i]);
}

/**
 * @param {{title: string | null}} header
 * @param {import("../data/example.js").Example[]} examples  one, or two side by side
 */
export function createHeading(header, examples) {
  const name = header.title ? running(header.title) : "Where each token looks";
  const shown = alike(examples) ? examples.slice(0, 1) : examples;
  const abouts = shown.map((example) => about(example.header, shown.length === examples.length));
  const long = examples.some((example) => example.header.texts.join("").length > 240) ? " long" : "";
  return element("header", { class: `heading${long}` }, [
    element("h1", {}, [name]),
    element("div", { class: `abouts${shown.length > 1 ? " two" : ""}` }, abouts),
  ]);
}

/**
 * True where two differ in nothing that the heading says but their names, which stand above the
 * pictures too.
 *
 * @param {import("../data/example.js").Example[]} examples
 */
function alike([{ header: one }, other]) {
  const said = (/** @type {import("../data/data.js").ExampleHeader} */ header) =>
    JSON.stringify([header.texts, header.notes, sizes(header)]);
  return Boolean(other) && said(one) === said(other.header);
}

/**
 * @param {import("../data/data.js").ExampleHeader} header
 * @param {boolean} named
 */
function about(header, named) {
  const badges = header.texts.length > 1 ? ["A", "B"] : [""];
  const texts = header.texts.map((text, i) => {
    const line = element("p", { class: "text" }, [element("bdi", {}, [running(text)])]);
    if (badges[i]) line.prepend(element("span", { class: "badge" }, [badges[i]]));
    return line;
  });
  const notes = header.notes.map((note) => element("p", { class: "note" }, [note]));
  const name = named && header.name ? [element("p", { class: "name" }, [running(header.name)])] : [];
  return element("div", { class: "about" }, [
    ...name,
    element("div", { class: "texts" }, texts),
    element("p", { class: "sizes" }, [sizes(header)]),
    ...notes,
  ]);
}

/** @param {import("../data/data.js").ExampleHeader} header */
function sizes({ sizes: { n_layers: nLayers, n_heads: nHeads }, cut, tokens, key_tokens: keyTokens, model }) {
  const own = counted(tokens.text.length, "token");
  const both = keyTokens ? `${own} that look at ${keyTokens.text.length}` : own;
  const length = `${cut ? "the text is cut after " : ""}${both}`;
  const parts = [`${counted(nLayers, "layer")} of ${counted(nHeads, "head")}`, length];
  if (model) parts.unshift(running(model));
  return parts.join(" · ");
}
