/** The panels whose numbers have to be asked for, while they are open: weights and neurons. */

import { seenOf } from "../core/data/softmax.js";
import { currentHead } from "../core/state/state.js";
import { editAt, edgeOf } from "./edits.js";

/** Weights of a layer that are asked of an engine as they are; more of them are taken as the picture has them. */
const LARGEST = 1e6;

/**
 * @typedef {object} Asking
 * @property {import("./workbench.js").Shown} shown
 * @property {import("../core/frame/frame.js").Frame} frame
 * @property {import("./asked.js").Asked} asked
 * @property {string} panel
 */

/**
 * @param {Asking} asking
 * @param {import("./workbench.js").Workbench} bench
 * @param {() => boolean} fresh  whether these numbers are still wanted
 */
export async function showDetails({ shown, frame, asked, panel }, bench, fresh) {
  const kept = shown.after ?? shown.before;
  const { tokens } = kept.example;
  const state = frame.store.get();
  const usual = asked.place ?? shown.before.run.predictions[0]?.position ?? 0;
  const query = Math.min(state.query ?? usual, tokens.text.length - 1);
  if (panel === "neurons") {
    const { values, shape } = await kept.read("mlp_post", state.layer);
    const width = shape[1];
    const own = asked.edits.filter(({ quantity, layer }) => quantity === "mlp_post" && layer === state.layer);
    const edited = (/** @type {number} */ neuron, /** @type {number | null} */ position) =>
      own.some((edit) => edit.neuron === neuron && (edit.position ?? null) === position);
    if (!fresh()) return;
    bench.neurons.update({ tokens, layer: state.layer, position: query, values: values.subarray(query * width, (query + 1) * width), edited, theme: frame.theme() });
  } else if (panel === "weights") {
    const { layer } = state;
    const head = currentHead(state, frame.limits());
    const size = tokens.text.length;
    const all = await weightsOf(kept, layer, head);
    const place = { layer, head, position: query };
    const cut = (/** @type {number} */ key, /** @type {import("./weights.js").Reach} */ reach) => editAt(asked.edits, edgeOf(place, key, reach)) !== undefined;
    const own = asked.edits.filter((edit) => edit.quantity === "probs" && edit.layer === layer && edit.head === head && edit.position === query);
    if (!fresh()) return;
    bench.weights.update({
      tokens, layer, head, query, weights: all.subarray(query * size, (query + 1) * size),
      ...seenOf({ nKeys: size, window: kept.example.looking(layer).window }, kept.example.causal, query), cut, set: own.map(({ key }) => Number(key)),
    });
  }
}

/**
 * The weights of a head, (query, key).
 *
 * @param {import("./runs.js").Kept} kept
 * @param {number} layer
 * @param {number} head
 */
async function weightsOf({ example, read }, layer, head) {
  const cells = example.tokens.text.length ** 2;
  if (cells * example.heads.length > LARGEST) return example.head(layer, head);
  const { values } = await read("probs", layer);
  return values.subarray(head * cells, (head + 1) * cells);
}
