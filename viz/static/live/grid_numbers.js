/** The numbers of the heads in the small grid: how far attention moved, or what a sweep found. */

import { attentionChange } from "./numbers.js";
import { requestOf } from "./asked.js";

/**
 * @typedef {import("./asked.js").Asked} Asked
 * @typedef {import("./pictures.js").Shown} Shown
 */

/** Heads that are tried unasked, and milliseconds of rest before they are. */
const SMALL = 36;
const PAUSE = 120;

export class GridNumbers {
  /**
   * @param {import("../engine/engine.js").Engine} engine
   * @param {() => void} ready  called when numbers have come
   */
  constructor(engine, ready) {
    this.engine = engine;
    this.ready = ready;
    this.going = false;
    this.wanted = "";
    /** What the last numbers were of. */
    this.known = "";
    /** @type {number[] | null} */
    this.values = null;
    this.failed = "";
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
    const wanted = `effect ${(shown.after ?? shown.before).name} ${position} ${id}`;
    this.want(wanted, true, async () => [...(await this.engine.sweep(requestOf(asked, true), { position, id })).values]);
    const fits = this.known === wanted;
    const said = `Change of log p of “${text.trim()}” when the head is off too: orange, it spoke for it; blue, against it. Choose another in the bars.`;
    return { values: fits ? this.values : null, valuesSaid: fits ? this.failed || said : "Trying each head…" };
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
    const wanted = `change ${before.name} ${after.name}`;
    this.want(wanted, false, async () => {
      const all = before.example.layers.map(async (layer) => attentionChange(await before.example.layer(layer), await after.example.layer(layer)));
      return (await Promise.all(all)).flat();
    });
    return {
      values: this.known === wanted ? this.values : null,
      valuesSaid: this.failed || "How far the attention of each head moved, in percent; 100: nothing in common with before.",
    };
  }

  /**
   * Computes numbers, unless they are there or others are on their way.
   *
   * @param {string} wanted
   * @param {boolean} slow
   * @param {() => Promise<number[]>} make
   * @returns {Promise<void>}
   */
  async want(wanted, slow, make) {
    this.wanted = wanted;
    if (this.known === wanted || this.going) return;
    this.going = true;
    // While words are typed each of them would try every head.
    if (slow) await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (this.wanted !== wanted) {
      this.going = false;
      return this.ready();
    }
    this.failed = "";
    try {
      this.values = await make();
    } catch (error) {
      this.values = null;
      this.failed = error instanceof Error ? error.message : String(error);
    }
    this.known = wanted;
    this.going = false;
    // What is asked for may be other numbers by now; they are asked for then.
    return this.ready();
  }
}
