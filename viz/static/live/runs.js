/**
 * The runs that are looked at: of the text, of the text with its changes, and of the other prompt.
 *
 * @typedef {import("../engine/engine.js").Engine} Engine
 * @typedef {import("../engine/engine.js").Request} Request
 *
 * @typedef {object} Kept
 * @property {string} name  of its request
 * @property {import("../engine/engine.js").Run} run
 * @property {Example} example
 * @property {(quantity: string, layer: number | null) => Promise<import("../engine/engine.js").Numbers>} read
 * @property {(position: number) => Promise<import("../engine/engine.js").Candidate[]>} candidates
 */

import { Example } from "../core/data/example.js";

export class Runs {
  /**
   * @param {Engine} engine
   * @param {(kept: Kept) => import("../core/data/source.js").Source | null} [source]  what views may ask
   */
  constructor(engine, source = () => null) {
    this.engine = engine;
    this.source = source;
    /** @type {Map<string, Kept>} */
    this.known = new Map();
  }

  /**
   * The run of a request; the same as before for the same request, while it is looked at.
   *
   * @param {Request} request
   * @returns {Promise<Kept>}
   */
  async of(request) {
    const name = JSON.stringify(request.edits.length ? request : request.texts);
    const kept = this.known.get(name) ?? keptRun(this.engine, request, name, await this.engine.trace(request));
    this.known.set(name, kept);
    kept.example.source ??= this.source(kept);
    return kept;
  }

  /**
   * The next token; null where there is none, as a text may fill all positions.
   *
   * @param {Request} request
   * @param {import("../engine/engine.js").Sampling} sampling
   */
  next(request, sampling) {
    return this.engine.step(request, sampling).catch(() => null);
  }

  /** Lets go of all other runs. @param {(Kept | null)[]} looked */
  keep(looked) {
    const names = looked.map((one) => one?.name);
    for (const name of this.known.keys()) if (!names.includes(name)) this.known.delete(name);
  }
}

/**
 * A run that can be read for as long as it is looked at: an engine keeps only the last few, and runs
 * it once more where it has let go of it.
 *
 * @param {Engine} engine
 * @param {Request} request
 * @param {string} name
 * @param {import("../engine/engine.js").Run} run
 * @returns {Kept}
 */
function keptRun(engine, request, name, run) {
  const again = async () => {
    kept.run = { ...(await engine.trace(request)), header: run.header };
  };
  /**
   * @template Read
   * @param {() => Promise<Read>} read
   */
  const reading = async (read) => {
    const { run: asked } = kept;
    try {
      return await read();
    } catch {
      if (kept.run === asked) await again();
      return read();
    }
  };
  const blocks = {
    /** @type {import("../core/data/data.js").Blocks["bytes"]} */
    bytes: (...given) => reading(() => kept.run.blocks.bytes(...given)),
  };
  /** @type {Kept} */
  const kept = {
    name,
    run,
    example: new Example(run.header, blocks, 0),
    /** @type {Kept["read"]} */
    read: (quantity, layer) => reading(() => engine.read(kept.run.number, quantity, layer)),
    candidates: (position) => reading(() => engine.candidates(kept.run.number, position)),
  };
  return kept;
}
