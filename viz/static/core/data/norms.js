/**
 * LayerNorm and RMSNorm: all numbers of a vector, in double precision.
 *
 * @import { Tokens } from "./data.js"
 * @import { Source } from "./source.js"
 */

import { weightOf } from "./source.js";

/**
 * @typedef {object} Norm  of a model, and its weights
 * @property {"layer" | "rms"} kind
 * @property {ArrayLike<number>} weight  as they are stored
 * @property {ArrayLike<number> | null} bias
 * @property {boolean} plusOne  what is multiplied by is 1 + weight
 * @property {number} eps
 *
 * @typedef {object} Normed  one vector
 * @property {number} mean  that is taken off; of RMSNorm 0
 * @property {number} variance  the mean square of what is left
 * @property {Float32Array} values  rounded as the model holds them
 */

/** @param {Source} source @param {string} name @param {number | null} layer @returns {Promise<Norm>} */
export async function normNamed(source, name, layer) {
  const [weight, bias] = await Promise.all([weightOf(source, `${name}.weight`, layer, null), source.weights(`${name}.bias`, layer, null)]);
  const { normKind: kind, plusOne, eps } = source.shape.built;
  return { kind, weight, bias: bias && bias.values, plusOne, eps };
}

/**
 * LayerNorm: (x − mean) / √(variance + ε) · γ + β. RMSNorm: x / √(mean square + ε) · γ.
 *
 * @param {ArrayLike<number>} x
 * @param {Norm} norm
 * @returns {Normed}
 */
export function normed(x, { kind, weight, bias, plusOne, eps }) {
  const { length: width } = x;
  let [sum, squares] = [0, 0];
  if (kind === "layer") for (let i = 0; i < width; i += 1) sum += x[i];
  const mean = sum / width, more = plusOne ? 1 : 0;
  for (let i = 0; i < width; i += 1) squares += (x[i] - mean) * (x[i] - mean);
  const variance = squares / width, scale = 1 / Math.sqrt(variance + eps);
  const values = new Float32Array(width);
  for (let i = 0; i < width; i += 1) values[i] = (x[i] - mean) * scale * (more + weight[i]) + (bias ? bias[i] : 0);
  return { mean, variance, values };
}

/**
 * @typedef {object} Row  of a table
 * @property {"word" | "position" | "segment"} name
 * @property {number} row
 * @property {number} scale  that its numbers are multiplied by
 * @property {Float32Array} numbers
 *
 * @typedef {object} Embedding
 * @property {Row[]} rows  that are added up
 * @property {Float32Array} sum
 * @property {Norm | null} norm
 * @property {Float32Array} values  the sum after its norm, which a projection may follow
 */

/** @param {Source} source @param {Tokens} tokens @param {number} position @returns {Promise<Embedding>} */
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
export function positionRow(ids, position, offset) {
  const padding = offset - 1;
  if (ids[position] === padding) return padding;
  return padding + ids.slice(0, position + 1).filter((id) => id !== padding).length;
}
