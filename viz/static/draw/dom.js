/** Elements, made without markup: text only ever enters as text. */

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
 * @param {{mark: string, text: string}} token
 */
export function tokenChip({ mark, text }) {
  const chip = element("bdi", { class: "chip" }, [text]);
  if (mark) chip.prepend(element("span", { class: "mark" }, [mark]));
  return chip;
}
