/** What stands above a page: its title, its texts, the sizes of the model. */

import { element } from "./dom.js";
import { running } from "./text.js";

/**
 * The name of the page, for the window.
 *
 * @param {import("./data.js").Header} header
 * @param {import("./example.js").Example} example
 */
export function titleOf(header, { header: { texts, model } }) {
  const title = header.title ?? (texts.map(running).join(" / ") || "Attention");
  return running(`${title} · attention${model ? ` in ${model}` : ""}`);
}

/**
 * @param {import("./data.js").Header} header
 * @param {import("./example.js").Example[]} examples  one, or two side by side
 */
export function createHeading(header, examples) {
  const name = header.title ? running(header.title) : "Where each token looks";
  const long = examples.some((example) => example.header.texts.join("").length > 240) ? " long" : "";
  return element("header", { class: `heading${long}` }, [
    element("h1", {}, [name]),
    element("div", { class: `abouts${examples.length > 1 ? " two" : ""}` }, examples.map(about)),
  ]);
}

/** @param {import("./example.js").Example} example */
function about({ header }) {
  const badges = header.texts.length > 1 ? ["A", "B"] : [""];
  const texts = header.texts.map((text, i) => {
    const line = element("p", { class: "text" }, [element("bdi", {}, [running(text)])]);
    if (badges[i]) line.prepend(element("span", { class: "badge" }, [badges[i]]));
    return line;
  });
  const notes = header.notes.map((note) => element("p", { class: "note" }, [note]));
  const name = header.name ? [element("p", { class: "name" }, [running(header.name)])] : [];
  return element("div", { class: "about" }, [
    ...name,
    element("div", { class: "texts" }, texts),
    element("p", { class: "sizes" }, [sizes(header)]),
    ...notes,
  ]);
}

/** @param {import("./data.js").ExampleHeader} header */
function sizes({ sizes: { n_layers: nLayers, n_heads: nHeads }, cut, tokens, model }) {
  const length = `${cut ? "the text is cut after " : ""}${count(tokens.text.length, "token")}`;
  const parts = [`${count(nLayers, "layer")} of ${count(nHeads, "head")}`, length];
  if (model) parts.unshift(running(model));
  return parts.join(" · ");
}

/**
 * @param {number} number
 * @param {string} thing
 */
function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}
