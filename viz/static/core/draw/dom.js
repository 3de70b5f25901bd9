/**
 * Elements, made without markup: text only ever enters as text.
 *
 * @import { Tokens } from "../data/data.js"
 */

import { tokenText } from "../text/text.js";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string>} [attributes]
 * @param {(Node | string)[]} [children]
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/**
 * A token as it stands in running text.
 *
 * @param {Tokens} tokens
 * @param {number} index
 * @param {number} [limit]  characters that are shown
 */
export function tokenChip(tokens, index, limit) {
  const { mark, text } = tokenText(tokens, index, limit);
  const chip = element("bdi", { class: "chip" }, [text]);
  if (mark) chip.prepend(element("span", { class: "mark" }, [mark]));
  return chip;
}
