/** What each layer would predict: the streams read by the model's own head, as analysis/lens.py. */

import { tensor } from "./tensor.js";

/** Tokens at each place, and decimals of their probabilities, as in viz/lens.py. */
const TOP = 5;
const DECIMALS = 5;
/** Positions that are read at a time: with a large vocabulary each takes about a millisecond. */
const AT_ONCE = 16;

/**
 * @param {import("./pass.js").Pass} pass  of a model with an output head
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @param {() => Promise<void>} pause  between some positions and the next
 * @returns {Promise<import("../core/data/data.js").Lens>}
 */
export async function lensOf(pass, tokenizer, pause) {
  const streams = [pass.embed, ...pass.layers.map((layer) => layer.read("resid_post"))];
  /** @type {import("../core/data/data.js").Lens} */
  const lens = { points: ["embed", ...pass.layers.map((_, n) => `resid_post ${n}`)], probs: [], strings: [] };
  for (const { values } of streams) {
    const found = [];
    for (let from = 0; from < pass.length; from += AT_ONCE) {
      found.push(...readRows(pass, values, from, Math.min(from + AT_ONCE, pass.length), tokenizer));
      await pause();
    }
    lens.probs.push(found.map((ranks) => ranks.map(({ prob }) => Number(prob.toFixed(DECIMALS)))));
    lens.strings.push(found.map((ranks) => ranks.map(({ text }) => text)));
  }
  return lens;
}

/**
 * The most probable tokens at some positions.
 *
 * @param {import("./pass.js").Pass} pass
 * @param {Float32Array} stream  (position, d_model)
 * @param {number} from
 * @param {number} to
 * @param {import("./tokens.js").Tokenizer} tokenizer
 */
function readRows({ model: { body, head, config } }, stream, from, to, tokenizer) {
  if (!head) throw new Error(`${config.name} has no head that predicts tokens`);
  const width = config.d_model;
  const rows = tensor([to - from, width], stream.slice(from * width, to * width));
  const { shape, values } = head.forward(body.final(rows));
  return Array.from({ length: to - from }, (_, row) =>
    mostProbable(values.subarray(row * shape[1], (row + 1) * shape[1]), tokenizer));
}

/**
 * As `candidates` finds them, which makes a list of all probabilities: here there are hundreds of rows.
 *
 * @param {Float32Array} logits  (vocab)
 * @param {import("./tokens.js").Tokenizer} tokenizer
 * @returns {{text: string, prob: number}[]}
 */
function mostProbable(logits, tokenizer) {
  /** @type {number[]} */
  const ids = [];
  for (let i = 0; i < Math.min(logits.length, tokenizer.size); i += 1) {
    if (ids.length === TOP && !(logits[i] > logits[ids[TOP - 1]])) continue;
    let place = ids.length;
    while (place && logits[ids[place - 1]] < logits[i]) place -= 1;
    ids.splice(place, 0, i);
    if (ids.length > TOP) ids.pop();
  }
  let [largest, total] = [-Infinity, 0];
  for (let i = 0; i < logits.length; i += 1) largest = Math.max(largest, logits[i]);
  if (!Number.isFinite(largest)) throw new Error("the logits have NaN or infinity, so nothing can be predicted");
  for (let i = 0; i < logits.length; i += 1) total += Math.exp(logits[i] - largest);
  return ids.map((id) => ({ text: tokenizer.string(id), prob: Math.exp(logits[id] - largest) / total }));
}
