/** The texts of a page in its language: build.js puts `translated` before every text that minibert/languages has. */

/** By the English; English itself where the page has none. @type {Record<string, string>} */
const strings = JSON.parse(globalThis.document?.getElementById("minibert-strings")?.textContent ?? "{}");

/** @param {TemplateStringsArray} parts @param {unknown[]} values */
export function translated(parts, ...values) {
  const key = parts.reduce((text, part, i) => `${text}{${i - 1}}${part}`);
  return (strings[key] ?? key).replace(/\{(\d)\}/g, (_, i) => String(values[i]));
}
