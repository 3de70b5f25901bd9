/**
 * Text and bytes as a file holds them: printable characters, deflated.
 *
 * @import { Blocks } from "./data.js"
 */

/** The digits of viz/document.py; five of them are four bytes. */
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_/{|}~";

/**
 * @param {string} text  digits; a last group of n + 1 of them is n bytes
 * @returns {Uint8Array}
 */
export function fromBase85(text) {
  const values = new Uint8Array(128);
  for (let i = 0; i < 85; i += 1) values[DIGITS.charCodeAt(i)] = i;
  const bytes = new Uint8Array(Math.ceil(text.length / 5) * 4);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < text.length; i += 5) {
    let group = 0;
    for (let j = i; j < i + 5; j += 1) group = group * 85 + (j < text.length ? values[text.charCodeAt(j)] : 84);
    view.setUint32((i / 5) * 4, group);
  }
  return bytes.subarray(0, Math.floor((text.length * 4) / 5));
}

/** Not through a Blob, which would take the bytes to another process and back. @param {Uint8Array} packed */
export function inflate(packed) {
  const body = new Response(/** @type {BodyInit} */ (packed)).body;
  return new Response(body?.pipeThrough(new DecompressionStream("deflate")));
}

/**
 * @param {(name: string) => Promise<string>} textOf  the base64 of a block
 * @returns {Blocks}
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

/** @param {string} text @returns {Uint8Array} */
export function fromBase64(text) {
  if ("fromBase64" in Uint8Array) return /** @type {any} */ (Uint8Array).fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
