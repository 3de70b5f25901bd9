/** Which head matters for a prediction: the pass is run again without each head in turn. */

import { Pass } from "./pass.js";
import { Plan } from "./plan.js";
import { logProb, predicts } from "./predictions.js";
import { tensor } from "./tensor.js";

/**
 * (layer, head): log probability of the token where z of that head is zero as well, less that of the
 * pass itself.
 *
 * @param {Pass} pass
 * @param {import("./engine.js").Edit[]} edits  those of the pass
 * @param {import("./plan.js").Sources} sources
 * @param {import("./engine.js").Question} question
 * @param {() => Promise<void>} pause  between two heads
 * @returns {Promise<import("./tensor.js").Tensor>}
 */
export async function sweep(pass, edits, sources, { position, id }, pause) {
  const { config, layers } = pass.model;
  checkQuestion(pass, position, id);
  const before = logProb(pass.logitsAt(position), id);
  const out = tensor([layers.length, config.n_heads]);
  for (const layer of layers.keys()) {
    for (let head = 0; head < config.n_heads; head += 1) {
      const plan = new Plan([...edits, { quantity: "z", change: "zero", layer, head }], config, pass.length, sources);
      const without = new Pass(pass.model, pass.tokens, plan, pass, { layer, name: "z" });
      out.values[layer * config.n_heads + head] = logProb(without.logitsAt(position), id) - before;
      await pause();
    }
  }
  return out;
}

/**
 * @param {Pass} pass
 * @param {number} position
 * @param {number} id
 */
function checkQuestion(pass, position, id) {
  const { config } = pass.model;
  const size = predicts(config) === "classes" ? config.labels.length : config.vocab_size;
  if (predicts(config) === "none") throw new Error("the model predicts nothing, so no head can matter for it");
  if (!(position >= 0 && position < pass.length)) throw new Error(`there is no position ${position} in ${pass.length} tokens`);
  if (!(id >= 0 && id < size)) throw new Error(`there is no prediction ${id} among ${size}`);
}
