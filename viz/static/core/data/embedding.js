/** The embedding of one token, as layers/bodies.py makes it of the rows of its tables. */

import { normed, normNamed } from "./norms.js";
import { weightOf } from "./source.js";

/**
 * @typedef {import("./source.js").Source} Source
 *
 * @typedef {object} Row  of a table
 * @property {"word" | "position" | "segment"} name
 * @property {number} row
 * @property {number} scale  that its numbers are multiplied by
 * @property {Float32Array} numbers
 *
 * @typedef {object} Embedding
 * @property {Row[]} rows  that are added up
 * @property {Float32Array} sum
 * @property {import("./norms.js").Norm | null} norm
 * @property {Float32Array} values  the sum after its norm, which a projection may follow
 */

/**
 * @param {Source} source
 * @param {import("./data.js").Tokens} tokens
 * @param {number} position
 * @returns {Promise<Embedding>}
 */
export async function embeddingOf(source, { segment }, position) {
  const { ids } = source;
  const { positions, positionOffset, segments, embedScale, embedNorm } = source.shape.built;
  const tables = /** @type {[Row["name"], number, number][]} */ ([
    ["word", ids[position], embedScale],
    ...(positions ? [["position", positionRow(ids, position, positionOffset), 1]] : []),
    ...(segments ? [["segment", segment[position], 1]] : []),
  ]);
  const [norm, ...rows] = await Promise.all([
    embedNorm ? normNamed(source, "body.embed_norm", null) : null,
    ...tables.map(async ([name, row, scale]) => ({ name, row, scale, numbers: await weightOf(source, `body.${name}.weight`, null, row) })),
  ]);
  const sum = rows[0].numbers.map((_, i) => rows.reduce((all, { numbers, scale }) => all + numbers[i] * scale, 0));
  return { rows, sum, norm, values: norm ? normed(sum, norm).values : sum };
}

/**
 * The row of the table of positions: rows that are left out at its beginning end with that of padding,
 * which is not counted.
 *
 * @param {number[]} ids
 * @param {number} position
 * @param {number} offset
 */
function positionRow(ids, position, offset) {
  const padding = offset - 1;
  if (ids[position] === padding) return padding;
  return padding + ids.slice(0, position + 1).filter((id) => id !== padding).length;
}
