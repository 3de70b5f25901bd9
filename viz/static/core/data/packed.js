/**
 * Text and bytes as a file holds them: printable characters, deflated.
 *
 * @import { Blocks } from "./data.js"
 */

/** The digits of viz/payload.py; five of them are four bytes. */
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_/{|}~";

const VALUES = Uint8Array.from({ length: 128 }, (_, code) => DIGITS.indexOf(String.fromCharCode(code)));

/** @param {string} text  digits; a last group of n + 1 of them is n bytes @returns {Uint8Array} */
export function fromBase85(text) {
  const codes = new TextEncoder().encode(text.padEnd(Math.ceil(text.length / 5) * 5, DIGITS[84]));
  const bytes = new Uint8Array((codes.length / 5) * 4);
  for (let i = 0, to = 0; i < codes.length; i += 5, to += 4) {
    const high = ((VALUES[codes[i]] * 85 + VALUES[codes[i + 1]]) * 85 + VALUES[codes[i + 2]]) * 85 + VALUES[codes[i + 3]];
    // The low 32 bits.
    const group = Math.imul(high, 85) + VALUES[codes[i + 4]];
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

/** @param {(name: string) => Promise<string>} textOf  the digits of a block @returns {Blocks} */
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
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}
