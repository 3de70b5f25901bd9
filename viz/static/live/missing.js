/** The probabilities of tokens that only one of two runs has among its most probable. */

/**
 * @typedef {import("./runs.js").Kept} Kept
 * @typedef {import("../engine/engine.js").Prediction} Prediction
 * @typedef {import("../engine/engine.js").Candidate} Candidate
 */

/** Numbers that are asked of an engine for it: beyond that they stay unknown. */
const LARGEST = 2e6;
/** Candidates that are shown. */
const SHOWN = 5;

/**
 * What is predicted before and after, each with the first candidates of the other.
 *
 * @param {Kept} before
 * @param {Kept | null} after
 * @param {number} vocabulary
 */
export async function predictionsOf(before, after, vocabulary) {
  const first = before.run.predictions;
  if (!after) return { before: first, after: null };
  return { before: await completed(before, after.run.predictions, vocabulary), after: await completed(after, first, vocabulary) };
}

/**
 * The predictions of a run, with the first candidates of another one behind its own.
 *
 * @param {Kept} kept
 * @param {Prediction[]} others
 * @param {number} vocabulary
 * @returns {Promise<Prediction[]>}
 */
async function completed(kept, others, vocabulary) {
  const own = kept.run.predictions;
  const missing = own.map(({ candidates }, i) => (others[i]?.candidates ?? []).slice(0, SHOWN).filter(({ id }) => !candidates.some((one) => one.id === id)));
  const size = kept.example.tokens.text.length * vocabulary;
  if (size > LARGEST || missing.every((some) => !some.length)) return own;
  const { values, shape } = await kept.read("logits", null);
  const width = shape[shape.length - 1];
  return own.map(({ position, candidates }, i) => {
    const probs = probsOf(values.subarray(position * width, (position + 1) * width));
    const more = missing[i].map(({ id, text }) => ({ id, text, ...probs(id) }));
    return { position, candidates: [...candidates, ...more.sort((a, b) => b.prob - a.prob)] };
  });
}

/**
 * @param {Float32Array} logits  of one position
 * @returns {(id: number) => {logit: number, prob: number}}
 */
function probsOf(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const total = logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0);
  return (id) => ({ logit: logits[id], prob: Math.exp(logits[id] - largest) / total });
}
