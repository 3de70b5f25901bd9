/**
 * Query and key of one head in many texts, for a picture of all of them.
 *
 * @typedef {import("./pass.js").Pass} Pass
 * @typedef {import("../core/data/source.js").Collected} Collected
 */

import { lookingOf, ofHead } from "./attention.js";
import { headerOf } from "./blocks.js";

/** Passes that are kept, so that another head of the same texts needs none of them again. */
const KEPT = 256;

export class Collection {
  /** @param {(texts: string[]) => Pass} run */
  constructor(run) {
    this.run = run;
    /** @type {Map<string, Pass>} */
    this.passes = new Map();
  }

  /**
   * @param {string[][]} texts  of each pass, one or two
   * @param {number} layer
   * @param {number} head
   * @param {() => Promise<void>} [pause]
   * @returns {Promise<Collected>}
   */
  async of(texts, layer, head, pause = async () => {}) {
    /** @type {Pass[]} */
    const passes = [];
    for (const one of texts) {
      const name = JSON.stringify(one);
      const known = this.passes.get(name);
      passes.push(known ?? this.run(one));
      this.passes.set(name, passes[passes.length - 1]);
      if (!known) await pause();
    }
    for (const oldest of [...this.passes.keys()].slice(0, -KEPT)) this.passes.delete(oldest);
    const [config] = passes.map(({ model }) => model.config);
    if (!config) throw new Error("there is no text to collect a head of");
    if (!(head < config.n_heads)) throw new RangeError(`head ${head}: a layer has ${config.n_heads}`);
    const all = (/** @type {"query" | "key"} */ name, /** @type {number} */ place) =>
      joined(passes.map((pass) => ofHead(pass.read(name, layer), place)));
    return {
      from: passes.map((pass) => ({ texts: pass.tokens.texts, tokens: headerOf(pass).tokens })),
      width: config.d_head,
      scale: config.scale[layer],
      ...lookingOf(config, layer),
      query: all("query", head),
      key: all("key", Math.floor((head * config.n_kv_heads) / config.n_heads)),
    };
  }
}

/** @param {Float32Array[]} parts */
function joined(parts) {
  const out = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let to = 0;
  for (const part of parts) {
    out.set(part, to);
    to += part.length;
  }
  return out;
}
