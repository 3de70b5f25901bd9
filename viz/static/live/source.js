/** What the views may ask of the model behind a run. */

/**
 * @typedef {import("../core/data/source.js").Source} Source
 * @typedef {import("../core/data/source.js").Numbers} Numbers
 */

/**
 * @param {import("../engine/engine.js").Engine} engine
 * @param {import("../engine/engine.js").About} about
 * @param {import("../core/data/source.js").Texts} texts
 * @returns {(kept: import("./runs.js").Kept) => Source}
 */
export function sourceOf(engine, about, texts) {
  const shape = { ...about, predicts: about.predicts === "classes" ? /** @type {const} */ ("none") : about.predicts };
  /** @type {Map<string, Promise<Numbers | null>>} */
  const weights = new Map();
  return (kept) => {
    /** @type {Map<string, Promise<Numbers>>} */
    const quantities = new Map();
    return {
      shape,
      ids: kept.run.ids,
      predicted: shape.predicts === "none" ? null : (kept.run.predictions[0]?.position ?? null),
      read: (quantity, layer) => once(quantities, `${quantity} ${layer}`, () => kept.read(quantity, layer)),
      weights: (name, layer, row) => once(weights, `${name} ${layer} ${row}`, () => engine.weights(name, layer, row)),
      candidates: (position) => kept.candidates(position),
      collect: (...asked) => engine.collect(...asked),
      texts,
    };
  };
}

/**
 * What is asked for once; what failed may be asked for again.
 *
 * @template Value
 * @param {Map<string, Promise<Value>>} known
 * @param {string} name
 * @param {() => Promise<Value>} ask
 */
function once(known, name, ask) {
  const asked = known.get(name) ?? ask();
  known.set(name, asked);
  asked.catch(() => known.delete(name));
  return asked;
}
