/** Text and bytes as a file holds them: printable characters, deflated. */

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

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toBase85(bytes) {
  const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  padded.set(bytes);
  const view = new DataView(padded.buffer);
  let text = "";
  for (let i = 0; i < padded.length; i += 4) {
    let group = view.getUint32(i);
    let digits = "";
    for (let j = 0; j < 5; j += 1) {
      digits = DIGITS[group % 85] + digits;
      group = Math.floor(group / 85);
    }
    text += digits;
  }
  // n bytes of a last group are n + 1 digits.
  return text.slice(0, Math.ceil((bytes.length * 5) / 4));
}

/** @param {Uint8Array} bytes @returns {Promise<Uint8Array>} */
export async function deflate(bytes) {
  const body = new Response(/** @type {BodyInit} */ (bytes)).body;
  const packed = new Response(body?.pipeThrough(new CompressionStream("deflate")));
  return new Uint8Array(await packed.arrayBuffer());
}

/**
 * Not through a Blob, which would take the bytes to another process and back.
 *
 * @param {Uint8Array} packed
 */
export function inflate(packed) {
  const body = new Response(/** @type {BodyInit} */ (packed)).body;
  return new Response(body?.pipeThrough(new DecompressionStream("deflate")));
}
