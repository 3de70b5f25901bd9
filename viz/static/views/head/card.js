/** The card of the head view, and what it compares the weights with. */

import { meanWeights } from "../../core/data/attention.js";
import { codesOf } from "../../core/data/codes.js";
import { hasLayer } from "../../core/data/measures.js";
import { element } from "../../core/draw/dom.js";
import { placesOf } from "../../core/state/state.js";
import { showHint, showToken, showWeight } from "./details.js";
import { sameTokens } from "./parts.js";

/**
 * @typedef {import("../../core/data/example.js").Example} Example
 * @typedef {import("../../core/data/example.js").Layer} Layer
 */

export class HeadCard {
  /** @param {import("../../core/frame/kinds.js").Stage} stage */
  constructor({ example, store, against }) {
    this.example = example;
    this.store = store;
    this.against = against;
    this.root = element("section", { class: "details", "aria-live": "polite", "aria-label": "Weights in numbers" });
    /** The same layer of the text that this one is compared with. @type {Layer | null} */
    this.there = null;
  }

  /**
   * Reads the same weights of the text that this one is compared with, where it has them.
   *
   * @param {number} layer
   * @param {() => boolean} wanted  false once something else is asked for
   * @returns {Promise<boolean>}  whether they are there
   */
  async read(layer, wanted) {
    this.there = null;
    const other = this.against();
    if (!other || !sameTokens(this.example, other)) return false;
    const places = placesOf(this.store, other);
    if (!other.layers.includes(layer) || !hasLayer(other, layer) || places.includes(-1)) return false;
    const take = (/** @type {Layer} */ read, /** @type {boolean} */ whole) => {
      this.there = whole ? read : null;
    };
    await codesOf(other).read(layer, places, take, wanted);
    return this.there !== null;
  }

  hint() {
    showHint(this.root);
  }

  /**
   * @param {import("./head.js").Scene} scene
   * @param {import("../../core/data/attention.js").Focus} focus
   * @param {number | null} other  the token opposite that was chosen too
   * @param {Float64Array} means
   * @param {number[]} places  the largest of them
   */
  write(scene, focus, other, means, places) {
    const there = this.thereFor(scene);
    const looked = { ...scene, focus, there };
    if (other !== null) return showWeight(this.root, looked, other);
    const before = there && meanWeights(there.layer, there.heads, scene.shown, focus);
    return showToken(this.root, looked, means, places, before);
  }

  /** @param {import("./head.js").Scene} scene */
  thereFor({ layer }) {
    const other = this.against();
    if (!other || this.there?.number !== layer.number) return null;
    return { layer: this.there, heads: placesOf(this.store, other), name: other.header.name };
  }
}

