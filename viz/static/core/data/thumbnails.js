/**
 * The numbers behind the model view: a small picture of every head at once. Nothing large is kept.
 *
 * @import { Example, Layer, Thumbnails } from "./example.js"
 */

/** Cells a side of a small picture. */
const SIDE = 64;

/**
 * True where a layer's weights are on the page, or what they are computed from.
 *
 * @param {Example} example
 * @param {number} layer
 */
export function hasLayer(example, layer) {
  const vectors = example.entry("query", layer) && example.entry("key", layer);
  return Boolean(example.entry("probs", layer) || vectors);
}

/**
 * The small pictures; where the page does not bring them, they are made from its layers.
 *
 * @param {Example} example
 * @returns {Promise<Thumbnails>}
 */
export async function thumbnailsOf(example) {
  const brought = await example.thumbnails();
  if (brought) return brought;
  const rows = Math.min(SIDE, example.tokens.text.length);
  const columns = Math.min(SIDE, example.keyTokens.text.length);
  const codes = new Uint8Array(example.layers.length * example.heads.length * rows * columns);
  for (const [place, number] of example.layers.entries()) {
    const layer = await example.layer(number);
    pool(layer, rows, columns, codes.subarray(place * layer.nHeads * rows * columns));
  }
  return { rows, columns, codes };
}

/**
 * The largest code of each block of cells, as `payload.pool` in Python has it.
 *
 * @param {Layer} layer
 * @param {number} rows
 * @param {number} columns
 * @param {Uint8Array} pooled
 */
function pool({ codes, nHeads, nQueries, nKeys }, rows, columns, pooled) {
  // The block of each cell; block b begins at floor(b * length / blocks).
  const [row, column] = [[nQueries, rows], [nKeys, columns]].map(([length, blocks]) =>
    Int32Array.from({ length }, (_, i) => Math.ceil(((i + 1) * blocks) / length) - 1),
  );
  let place = 0;
  for (let head = 0; head < nHeads; head += 1) {
    for (let query = 0; query < nQueries; query += 1) {
      const to = (head * rows + row[query]) * columns;
      for (let key = 0; key < nKeys; key += 1, place += 1) {
        const block = to + column[key];
        if (codes[place] > pooled[block]) pooled[block] = codes[place];
      }
    }
  }
}
