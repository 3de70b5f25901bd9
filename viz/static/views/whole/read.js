/**
 * The numbers of one token that the diagram shows.
 *
 * @typedef {import("../../core/data/source.js").Source} Source
 * @typedef {import("../../core/data/source.js").Built} Built
 *
 * @typedef {object} Inside  of the layer that is open, by the names of its quantities
 * @property {Record<string, Float32Array>} one  of the token
 * @property {Record<string, Float32Array[]>} heads  of the token, of each head
 *
 * @typedef {object} Whole
 * @property {import("../../core/data/example.js").Example} example
 * @property {Built} built
 * @property {Source["shape"]} shape
 * @property {number} layer  the one that is open
 * @property {import("../../core/data/wiring.js").LayerStep[]} steps  its steps
 * @property {number} position
 * @property {import("../../core/data/embedding.js").Embedding} embedding
 * @property {Float32Array} embed
 * @property {Map<number, Float32Array>} after  resid_post of each layer
 * @property {Inside} inside
 * @property {import("../../core/data/source.js").Candidate[]} candidates
 */

import { embeddingOf } from "../../core/data/embedding.js";
import { layerSteps } from "../../core/data/wiring.js";

/**
 * @param {Source} source
 * @param {import("../../core/data/example.js").Example} example
 * @param {{layer: number, position: number}} place
 * @returns {Promise<Whole>}
 */
export async function readWhole(source, example, { layer, position }) {
  const { shape } = source;
  const { built } = shape;
  const steps = layerSteps(built, layer).filter(({ between }) => !between);
  const named = (/** @type {boolean} */ ofHeads) => steps.filter(({ of }) => (of === "head" || of === "key") === ofHeads).map(({ id }) => id);
  const row = async (/** @type {string} */ quantity, /** @type {number | null} */ of) => {
    const { shape: [positions], values } = await source.read(quantity, of);
    const width = values.length / positions;
    return values.subarray(position * width, (position + 1) * width);
  };
  const heads = async (/** @type {string} */ quantity) => {
    const { shape: [count, positions, width], values } = await source.read(quantity, layer);
    return Array.from({ length: count }, (_, head) => {
      const from = (head * positions + position) * width;
      return values.subarray(from, from + width);
    });
  };
  const [embedding, embed, streams, stream, ofHeads, candidates] = await Promise.all([
    embeddingOf(source, example.tokens, position),
    row("embed", null),
    Promise.all(example.layers.map(async (one) => /** @type {[number, Float32Array]} */ ([one, await row("resid_post", one)]))),
    Promise.all(named(false).map(async (name) => [name, await row(name, layer)])),
    Promise.all(named(true).map(async (name) => [name, await heads(name)])),
    shape.predicts === "none" ? [] : source.candidates(position),
  ]);
  return {
    example,
    built,
    shape,
    layer,
    steps: layerSteps(built, layer),
    position,
    embedding,
    embed,
    after: new Map(streams),
    inside: { one: Object.fromEntries(stream), heads: Object.fromEntries(ofHeads) },
    candidates,
  };
}

/** The length of a vector. @param {ArrayLike<number>} numbers */
export function normOf(numbers) {
  return Math.sqrt(Array.from(numbers).reduce((sum, value) => sum + value * value, 0));
}
