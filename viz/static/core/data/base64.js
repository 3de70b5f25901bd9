/** Blocks that a page holds as base64: text that an HTML file or a script can hold. */

/**
 * @param {(name: string) => Promise<string>} textOf  the base64 of a block
 * @returns {import("./data.js").Blocks}
 */
export function blocksOfText(textOf) {
  return {
    async bytes(name, from = 0, to) {
      const text = await textOf(name);
      // Four digits are three bytes: no more of them is read than is asked for.
      const first = Math.floor(from / 3);
      const part = to === undefined ? text.slice(first * 4) : text.slice(first * 4, Math.ceil(to / 3) * 4);
      const bytes = fromBase64(part);
      return from % 3 || to !== undefined ? bytes.slice(from - first * 3, to === undefined ? undefined : to - first * 3) : bytes;
    },
  };
}

/**
 * @param {string} text
 * @returns {Uint8Array}
 */
function fromBase64(text) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
