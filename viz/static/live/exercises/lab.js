/**
 * What the exercises ask of a model, in the order asked: an engine answers only the newest of two runs.
 *
 * @typedef {import("../../engine/engine.js").Edit} Edit
 */

/** How often a run is asked for again that a newer one of the page pushed aside. */
const TRIES = 20;

export class Lab {
  /**
   * @param {import("../../engine/engine.js").Engine} engine
   * @param {import("../../engine/engine.js").About} about
   * @param {() => Promise<void>} rested  when the page's own run is done, which must not be pushed aside
   */
  constructor(engine, about, rested) {
    this.engine = engine;
    this.about = about;
    this.rested = rested;
  }

  /**
   * @param {string} text
   * @param {Edit[]} [edits]
   */
  async run(text, edits = []) {
    for (let tried = 1; ; tried += 1) {
      await this.rested();
      try {
        return new LabRun(this.engine, await this.engine.trace({ texts: [text], edits }));
      } catch (error) {
        if (!(error instanceof Error) || error.name !== "AbortError" || tried === TRIES) throw error;
      }
    }
  }

  /** A weight of the model, by its whole name. @param {string} name */
  async weight(name) {
    const found = await this.engine.weights(name, null, null);
    if (!found) throw new Error(`this model has no weight ${name}, which the exercise needs`);
    return found;
  }

  /** The ids of the words of a text that are one token each, after [CLS]. @param {string} words */
  async ids(words) {
    return (await this.run(words)).run.ids.slice(1, -1);
  }
}

/** One run, and what is read of it. */
export class LabRun {
  /**
   * @param {import("../../engine/engine.js").Engine} engine
   * @param {import("../../engine/engine.js").Run} run
   */
  constructor(engine, run) {
    this.engine = engine;
    this.run = run;
    this.words = run.header.tokens.text;
    this.length = run.ids.length;
  }

  /** @param {string} token */
  place(token) {
    const at = this.words.indexOf(token);
    if (at < 0) throw new Error(`the exercise's text has no token “${token}” in this model`);
    return at;
  }

  /**
   * @param {string} quantity
   * @param {number | null} layer
   */
  read(quantity, layer) {
    return this.engine.read(this.run.number, quantity, layer);
  }

  /**
   * One row of a quantity with heads: of a query, or the vector of a position.
   *
   * @param {string} quantity
   * @param {number} layer
   * @param {number} head
   * @param {number} position
   */
  async row(quantity, layer, head, position) {
    const { shape, values } = await this.read(quantity, layer);
    const from = (head * shape[1] + position) * shape[2];
    return values.slice(from, from + shape[2]);
  }

  /** The logits at a position. @param {number} position */
  async logits(position) {
    const { shape, values } = await this.read("logits", null);
    return values.slice(position * shape[1], (position + 1) * shape[1]);
  }

  /** What the model says first at a position. @param {number} position */
  async first(position) {
    return (await this.engine.candidates(this.run.number, position))[0].text.trim();
  }
}
