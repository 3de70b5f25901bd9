/**
 * The runs that are looked at: of the text, of the text with its changes, and of the other prompt; and what is told
 * of them: how far attention moved, what became of the predictions, what a sweep found.
 *
 * @import { Layer } from "../core/data/example.js"
 * @import { Pair } from "../core/data/reasons.js"
 * @import { Named, Numbers, Source } from "../core/data/source.js"
 * @import { State } from "../core/state/state.js"
 * @import { About, Candidate, Engine, Request, Run, Sampling } from "../engine/engine.js"
 * @import { Asked } from "./asked.js"
 */

import { weightOf } from "../core/data/attention.js";
import { Example, once } from "../core/data/example.js";
import { pairsOf } from "../core/data/why.js";
import { requestOf } from "./asked.js";

export class Runner {
  /**
   * @param {() => Promise<void>} run  one run of what is asked for now
   * @param {(error: unknown) => void} failed
   * @param {() => void} [rested]  called when all that was asked for is done
   */
  constructor(run, failed, rested = () => {}) {
    this.run = run;
    this.rested = rested;
    this.failed = failed;
    this.wanted = false;
    /** @type {Promise<void> | null} */
    this.going = null;
  }

  /** Asks for a run; done when no run is asked for any more. */
  ask() {
    this.wanted = true;
    this.going ??= this.work().finally(() => {
      this.going = null;
      this.rested();
    });
    return this.going;
  }

  async work() {
    while (this.wanted) {
      this.wanted = false;
      try {
        await this.run();
      } catch (error) {
        const aborted = error instanceof Error && error.name === "AbortError";
        if (!aborted && !this.wanted) this.failed(error);
      }
    }
  }
}

/**
 * @typedef {object} Kept
 * @property {string} name  of its request
 * @property {Run} run
 * @property {Example} example  whose source asks the engine
 */

export class Runs {
  /** @param {Engine} engine @param {About} about */
  constructor(engine, about) {
    this.engine = engine;
    this.shape = { ...about, predicts: about.predicts === "classes" ? /** @type {const} */ ("none") : about.predicts };
    /** @type {Map<string, Kept>} */
    this.known = new Map();
    /** @type {Map<string, Promise<Numbers | null>>} */
    this.weights = new Map();
  }

  /**
   * The run of a request; the same as before for the same request, while it is looked at.
   *
   * @param {Request} request
   * @returns {Promise<Kept>}
   */
  async of(request) {
    const name = JSON.stringify(request.edits.length ? request : request.texts);
    const kept = this.known.get(name) ?? this.kept(request, name, await this.engine.trace(request));
    this.known.set(name, kept);
    return kept;
  }

  /**
   * A run that can be read for as long as it is looked at: an engine keeps only the last few, and runs
   * it once more where it has let go of it.
   *
   * @param {Request} request
   * @param {string} name
   * @param {Run} run
   */
  kept(request, name, run) {
    const { engine, shape } = this;
    /** @type {Kept} */
    const kept = { name, run, example: new Example(run.header, { bytes: (...given) => reading(() => kept.run.blocks.bytes(...given)) }, 0) };
    /**
     * @template Read
     * @param {() => Promise<Read>} read
     */
    const reading = async (read) => {
      const { run: asked } = kept;
      try {
        return await read();
      } catch {
        if (kept.run === asked) kept.run = { ...(await engine.trace(request)), header: run.header };
        return read();
      }
    };
    /** @type {Map<string, Promise<Numbers>>} */
    const quantities = new Map();
    /** @type {Map<string, Promise<Named>>} */
    const named = new Map();
    /** @type {Source} */
    const source = {
      shape,
      ids: run.ids,
      predicted: shape.predicts === "none" ? null : (run.predictions[0]?.position ?? null),
      read: (quantity, layer) => once(quantities, `${quantity} ${layer}`, () => reading(() => engine.read(kept.run.number, quantity, layer))),
      weights: (own, layer, row) => once(this.weights, `${own} ${layer} ${row}`, () => engine.weights(own, layer, row)),
      candidates: (position) => reading(() => engine.candidates(kept.run.number, position)),
      features: (position) => once(named, `${position}`, () => reading(() => engine.features(kept.run.number, position))),
      async reason(tokens, vectors, asked, features) {
        const all = await pairsOf({ source, tokens, vectors, asked, features });
        const sumOf = (/** @type {Pair[]} */ some) => some.reduce((sum, { score }) => sum + score, 0);
        return { pairs: all.filter(({ same }) => !same), same: sumOf(all.filter(({ same }) => same)), sum: sumOf(all) };
      },
    };
    kept.example.source = source;
    return kept;
  }

  /**
   * The next token; null where there is none, as a text may fill all positions.
   *
   * @param {Request} request
   * @param {Sampling} sampling
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
 * @typedef {{before: Kept, after: Kept | null, other: Kept | null}} Shown
 */

/** The examples of the runs, each with its name and its place. @param {Shown} shown */
export function namedExamples({ before, after, other }) {
  const named = /** @type {[Kept | null, string][]} */ ([
    [before, after ? "Before" : other ? "Text" : ""],
    [after, "After"],
    [other, "Other prompt"],
  ]);
  return named.flatMap(([kept, name]) => (kept ? [{ kept, name }] : [])).map(({ kept: { example }, name }, i) => {
    Object.assign(example, { index: i });
    Object.assign(example.header, { name });
    return example;
  });
}

/** @param {Shown | null} one @param {Shown} other */
export function sameRuns(one, other) {
  return one?.before === other.before && one.after === other.after && one.other === other.other;
}

/**
 * The state of the picture that is chosen with other runs: what stands in it, and what was kept where
 * its token is now.
 *
 * @param {State} state
 * @param {Shown | null} shown  the runs before
 * @param {Shown} runs
 * @param {(number | null)[]} moved  where each token is now
 */
export function followed(state, shown, runs, moved) {
  const had = { after: Boolean(shown?.after), other: Boolean(shown?.other) };
  const now = (/** @type {number | null} */ at) => (at === null ? null : (moved[at] ?? null));
  return { ...besideOf(state, had, runs), query: now(state.query), key: now(state.key) };
}

/**
 * What stands in the picture after runs came or went: what is new beside the text, and else the same
 * as before.
 *
 * @param {{example: number, beside: number | null}} state
 * @param {{after: boolean, other: boolean}} had
 * @param {{after: unknown, other: unknown}} now
 * @returns {{example: number, beside: number | null}}
 */
export function besideOf({ example, beside }, had, { after, other }) {
  const roles = (/** @type {{after: unknown, other: unknown}} */ runs) => ["before", ...(runs.after ? ["after"] : []), ...(runs.other ? ["other"] : [])];
  const [before, now] = [roles(had), roles({ after, other })];
  if (after && !had.after) return { example: 0, beside: now.indexOf("after") };
  if (other && !had.other && !after) return { example: 0, beside: now.indexOf("other") };
  const placeOf = (/** @type {number | null} */ place) => (place === null ? -1 : now.indexOf(before[place]));
  const [first, second] = [Math.max(0, placeOf(example)), placeOf(beside)];
  return { example: first, beside: second < 0 || second === first ? null : second };
}

/**
 * @typedef {object} Row  of the bars: a predicted token before and after
 * @property {number} id
 * @property {string} text
 * @property {number | null} before  probability; null: not among those that the engine names
 * @property {number | null} after
 */

/**
 * How far the attention of each head of a layer moved: the mean over tokens of half the sum of
 * |after - before|, from 0 (the same) to 1 (nothing in common).
 *
 * @param {Layer} before
 * @param {Layer} after
 * @returns {number[]}
 */
export function attentionChange(before, after) {
  const cells = before.nQueries * before.nKeys;
  return Array.from({ length: before.nHeads }, (_, head) => {
    let sum = 0;
    for (let i = head * cells; i < (head + 1) * cells; i += 1) {
      if (before.codes[i] !== after.codes[i]) sum += Math.abs(weightOf(after.codes[i]) - weightOf(before.codes[i]));
    }
    return sum / 2 / before.nQueries;
  });
}

/**
 * The most probable tokens of two predictions, those of the first before those of the second.
 *
 * @param {Candidate[]} before
 * @param {Candidate[] | null} after  null: nothing was changed
 * @param {number} most  of each
 * @returns {Row[]}
 */
export function predictionRows(before, after, most) {
  const named = new Map([...before.slice(0, most), ...(after ?? []).slice(0, most)].map((one) => [one.id, one.text]));
  const probOf = (/** @type {Candidate[]} */ all, /** @type {number} */ id) => all.find((one) => one.id === id)?.prob ?? null;
  return [...named].map(([id, text]) => ({
    id,
    text,
    before: probOf(before, id),
    after: after && probOf(after, id),
  }));
}

/** Heads that are tried unasked, and milliseconds of rest before they are; and until a picture is seen. */
const SMALL = 36;
const PAUSE = 120;
const FRAME = 17;

export class GridNumbers {
  /** @param {Engine} engine @param {() => void} ready  called when numbers have come */
  constructor(engine, ready) {
    this.engine = engine;
    this.ready = ready;
    this.going = false;
    this.wanted = "";
    /** The last numbers, what they were of, and why there are none. @type {{of: string, values: number[] | null, failed: string}} */
    this.known = { of: "", values: null, failed: "" };
  }

  /**
   * The numbers that are there, and what they are; those that are missing are asked for.
   *
   * @param {Shown} shown
   * @param {Asked} asked
   * @param {number} place  index of the prediction
   * @returns {{values: number[] | null, valuesSaid: string}}
   */
  of(shown, asked, place) {
    if (this.shade(shown, asked) === "change") return this.change(shown);
    const prediction = shown.before.run.predictions[place];
    if (!prediction) return { values: null, valuesSaid: "There is no predicted word to ask about." };
    const candidates = [...prediction.candidates, ...(shown.after?.run.predictions[place]?.candidates ?? [])];
    const { id, text } = candidates.find((one) => one.id === asked.word) ?? candidates[0];
    const { position } = prediction;
    const values = async () => [...(await this.engine.sweep(requestOf(asked, true), { position, id })).values];
    const said = `How much log p of “${text.trim()}” falls when the head is off too. Blue: the head speaks for this word; orange: against it. Choose another in the bars.`;
    return this.want(`effect ${(shown.after ?? shown.before).name} ${position} ${id}`, PAUSE, values, said, "Trying each head…");
  }

  /**
   * What the grid shows: where nothing is chosen, what changes did, and without changes which head
   * matters, if the model is small.
   *
   * @param {Shown} shown
   * @param {Asked} asked
   * @returns {"change" | "effect"}
   */
  shade({ before, after }, asked) {
    const { layers, heads } = before.example;
    const small = layers.length * heads.length <= SMALL && before.run.predictions.length > 0;
    return asked.shade ?? (after || !small ? "change" : "effect");
  }

  /** @param {Shown} shown */
  change({ before, after }) {
    if (!after) return { values: null, valuesSaid: "With a change, numbers say how far the attention of each head moved, in percent." };
    const values = async () => {
      const all = before.example.layers.map(async (layer) => attentionChange(await before.example.layer(layer), await after.example.layer(layer)));
      return (await Promise.all(all)).flat();
    };
    const said = "How far the attention of each head moved, in percent; 100: nothing in common with before.";
    return this.want(`change ${before.name} ${after.name}`, FRAME, values, said, said);
  }

  /**
   * Numbers, where they are there; else they are computed, unless others are on their way.
   *
   * @param {string} wanted
   * @param {number} pause  milliseconds before: while words are typed each of them would try every head
   * @param {() => Promise<number[]>} make
   * @param {string} said  of the numbers
   * @param {string} waiting  while they are computed
   */
  want(wanted, pause, make, said, waiting) {
    this.wanted = wanted;
    const { of, values, failed } = this.known;
    if (of === wanted) return { values, valuesSaid: failed || said };
    if (!this.going) this.make(wanted, pause, make);
    return { values: null, valuesSaid: waiting };
  }

  /** What is asked for may be other numbers in the end; they are asked for then. @param {string} wanted @param {number} pause @param {() => Promise<number[]>} make */
  async make(wanted, pause, make) {
    this.going = true;
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (this.wanted === wanted) {
      this.known = await make().then(
        (values) => ({ of: wanted, values, failed: "" }),
        (error) => ({ of: wanted, values: null, failed: error instanceof Error ? error.message : String(error) }),
      );
    }
    this.going = false;
    this.ready();
  }
}
