/**
 * Text and bytes as a file holds them: printable characters, deflated.
 *
 * @import { Blocks } from "./data.js"
 */

/** The digits of viz/payload.py; five of them are four bytes. */
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_/{|}~";

/**
 * @param {string} text  digits; a last group of n + 1 of them is n bytes
 * @returns {Uint8Array}
 */
export function fromBase85(text) {
  const values = new Uint8Array(128);
  for (let i = 0; i < 85; i += 1) values[DIGITS.charCodeAt(i)] = i;
  const whole = text.padEnd(Math.ceil(text.length / 5) * 5, DIGITS[84]);
  const bytes = new Uint8Array((whole.length / 5) * 4);
  for (let i = 0, to = 0; i < whole.length; i += 5, to += 4) {
    let group = 0;
    // The low 32 bits.
    for (let j = i; j < i + 5; j += 1) group = (Math.imul(group, 85) + values[whole.charCodeAt(j)]) | 0;
    bytes[to] = group >>> 24;
    bytes[to + 1] = group >>> 16;
    bytes[to + 2] = group >>> 8;
    bytes[to + 3] = group;
  }
  return bytes.slice(0, Math.floor((text.length * 4) / 5));
}

/** Not through a Blob, which would take the bytes to another process and back. @param {Uint8Array} packed */
export function inflate(packed) {
  const body = new Response(/** @type {BodyInit} */ (packed)).body;
  return new Response(body?.pipeThrough(new DecompressionStream("deflate")));
}

/**
 * @param {(name: string) => Promise<string>} textOf  the digits of a block
 * @returns {Blocks}
 */
export function blocksOfText(textOf) {
  return {
    async bytes(name, from = 0, to) {
      const text = await textOf(name);
      // No more of them is read than is asked for.
      const first = Math.floor(from / 4);
      const bytes = fromBase85(text.slice(first * 5, to === undefined ? undefined : Math.ceil(to / 4) * 5));
      return from % 4 || to !== undefined ? bytes.slice(from - first * 4, to === undefined ? undefined : to - first * 4) : bytes;
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
