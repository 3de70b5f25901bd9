/**
 * The weights of a layer as codes, head after head.
 *
 * Where a page has query and key only, a head of a long text takes some ten milliseconds: heads
 * that are on are computed first, in slices, and the others when they are switched on.
 *
 * @import { Example, Layer } from "./example.js"
 */

import { attend } from "./softmax.js";

/** Milliseconds of computing before the browser may do something else. */
const SLICE = 30;
/** Computed layers that are remembered; one of 512 tokens and 12 heads has 3 MB. */
const REMEMBERED = 4;

class LayerCodes {
  /** @param {Example} example */
  constructor(example) {
    this.example = example;
    /** @type {Map<number, {layer: Layer, ready: Set<number>}>} */
    this.computed = new Map();
  }

  /**
   * Reads the heads of a layer and shows them: once when some are there, once when all are.
   *
   * @param {number} number
   * @param {number[]} heads  places in the head axis
   * @param {(layer: Layer, whole: boolean) => void} show
   * @param {() => boolean} wanted  false once something else is asked for
   */
  async read(number, heads, show, wanted) {
    if (this.example.entry("probs", number)) {
      const layer = await this.example.layer(number);
      return wanted() ? show(layer, true) : undefined;
    }
    const { layer, ready } = this.begin(number);
    let [until, shown] = [performance.now() + SLICE, false];
    for (const place of heads) {
      if (ready.has(place)) continue;
      if (performance.now() > until) {
        if (!shown) show(layer, false);
        shown = true;
        await new Promise((resolve) => setTimeout(resolve));
        until = performance.now() + SLICE;
      }
      const vectors = await this.example.vectors(number, this.example.heads[place]);
      if (!wanted()) return undefined;
      if (!vectors) throw new RangeError(`layer ${number} has no weights on this page`);
      encode(attend(vectors, this.example.causal), layer, place);
      ready.add(place);
    }
    return wanted() ? show(layer, true) : undefined;
  }

  /** @param {number} number */
  begin(number) {
    const nQueries = this.example.tokens.text.length;
    const nKeys = this.example.keyTokens.text.length;
    const nHeads = this.example.heads.length;
    const known = this.computed.get(number);
    this.computed.delete(number);
    const begun = known ?? {
      layer: { number, nHeads, nQueries, nKeys, size: nQueries, codes: new Uint8Array(nHeads * nQueries * nKeys) },
      ready: new Set(),
    };
    this.computed.set(number, begun);
    for (const oldest of [...this.computed.keys()].slice(0, -REMEMBERED)) this.computed.delete(oldest);
    return begun;
  }
}

/** @param {Float32Array} probs @param {Layer} layer @param {number} place */
function encode(probs, { codes, nQueries, nKeys }, place) {
  const from = place * nQueries * nKeys;
  for (let i = 0; i < probs.length; i += 1) codes[from + i] = Math.sqrt(probs[i]) * 255 + 0.5;
}

/** @type {WeakMap<Example, LayerCodes>} */
const known = new WeakMap();

/** The codes of an example, the same for all who ask. @param {Example} example */
export function codesOf(example) {
  const codes = known.get(example) ?? new LayerCodes(example);
  known.set(example, codes);
  return codes;
}
