/**
 * The page's data: the header, and the layers, each unpacked when it is first looked at.
 *
 * @typedef {object} ArrayEntry
 * @property {string} block  id of the element that holds the bytes
 * @property {number} layer
 * @property {[number, number, number]} shape  head, query, key
 * @property {boolean} triangle  only the cells key <= query are there; the others are zero
 *
 * @typedef {object} Tokens
 * @property {string[]} text
 * @property {(string | null)[]} raw  the vocabulary's own string, null where it is the text
 * @property {number[]} special
 * @property {number[]} segment  0 first text, 1 second
 * @property {number[]} piece  1 where a token continues the one before it
 *
 * @typedef {object} Header
 * @property {ArrayEntry[]} arrays
 * @property {boolean} cut  the tokens end before the text does
 * @property {number[]} heads  the numbers of the heads on this page
 * @property {string} model
 * @property {{n_layers: number, n_heads: number}} sizes  of the model
 * @property {string[]} texts
 * @property {string | null} title
 * @property {Tokens} tokens
 *
 * @typedef {object} Layer  attention of one layer
 * @property {number} number
 * @property {number} nHeads
 * @property {number} size  tokens
 * @property {Uint8Array} codes  (head, query, key), 255 times the root of the weight
 *
 * @typedef {object} Source
 * @property {number[]} numbers  the layers on this page
 * @property {boolean} causal  true when no token looks ahead, in any layer
 * @property {(number: number) => Promise<Layer>} layer
 */

/** @returns {Header} */
export function readHeader() {
  return JSON.parse(textOf("header"));
}

/**
 * @param {Header} header
 * @returns {Source}
 */
export function createSource(header) {
  /** @type {Map<number, Promise<Layer>>} */
  const unpacked = new Map();
  return {
    numbers: header.arrays.map((entry) => entry.layer),
    causal: header.tokens.text.length > 1 && header.arrays.every((entry) => entry.triangle),
    layer(number) {
      const entry = header.arrays.find((candidate) => candidate.layer === number);
      if (!entry) throw new RangeError(`layer ${number} is not on this page`);
      const promise = unpacked.get(number) ?? unpack(entry);
      unpacked.set(number, promise);
      return promise;
    },
  };
}

/** @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}

/**
 * @param {ArrayEntry} entry
 * @returns {Promise<Layer>}
 */
async function unpack(entry) {
  await parsed();
  const [nHeads, size] = entry.shape;
  const bytes = await inflate(textOf(entry.block));
  const codes = entry.triangle ? fromTriangle(bytes, nHeads, size) : bytes;
  return { number: entry.layer, nHeads, size, codes };
}

/** The blocks stand behind the script, so that the page is there before its numbers are. */
function parsed() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("DOMContentLoaded", resolve, { once: true });
  });
}

/** @param {string} base64 */
async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * @param {Uint8Array} cells
 * @param {number} nHeads
 * @param {number} size
 */
function fromTriangle(cells, nHeads, size) {
  const codes = new Uint8Array(nHeads * size * size);
  let from = 0;
  for (let row = 0; row < nHeads * size; row += 1) {
    const length = (row % size) + 1;
    codes.set(cells.subarray(from, from + length), row * size);
    from += length;
  }
  return codes;
}
