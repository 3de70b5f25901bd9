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
 * @property {{name: string, numbers: Float32Array}[]} embeddings  that are added up
 * @property {Float32Array} embed
 * @property {Map<number, Float32Array>} after  resid_post of each layer
 * @property {Inside} inside
 * @property {import("../../core/data/source.js").Candidate[]} candidates
 */

import { layerSteps } from "../../core/data/wiring.js";

/**
 * @param {Source} source
 * @param {import("../../core/data/example.js").Example} example
 * @param {{layer: number, position: number}} place
 * @returns {Promise<Whole>}
 */
export async function readWhole(source, example, { layer, position }) {
  const { shape } = source;
  const built = /** @type {Built} */ (shape.built);
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
  const [embeddings, embed, streams, stream, ofHeads, candidates] = await Promise.all([
    embeddingsOf(source, example, position),
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
    embeddings,
    embed,
    after: new Map(streams),
    inside: { one: Object.fromEntries(stream), heads: Object.fromEntries(ofHeads) },
    candidates,
  };
}

/**
 * The rows of the tables that are added up.
 *
 * @param {Source} source
 * @param {import("../../core/data/example.js").Example} example
 * @param {number} position
 */
async function embeddingsOf({ shape, ids, weights }, { tokens }, position) {
  const tables = /** @type {[string, string, number][]} */ ([
    ["word", "body.word.weight", ids[position]],
    ...(shape.built?.positions ? [["position", "body.position.weight", position]] : []),
    ...(shape.built?.segments ? [["segment", "body.segment.weight", tokens.segment[position]]] : []),
  ]);
  const found = await Promise.all(tables.map(async ([name, weight, index]) => ({ name, numbers: (await weights(weight, null, index))?.values })));
  return found.flatMap(({ name, numbers }) => (numbers ? [{ name, numbers }] : []));
}

/** The length of a vector. @param {ArrayLike<number>} numbers */
export function normOf(numbers) {
  return Math.sqrt(Array.from(numbers).reduce((sum, value) => sum + value * value, 0));
}
