/**
 * All numbers of a quantity as a strip, of which one is chosen; of the logits, the most probable tokens.
 *
 * @import { Candidate } from "../../core/data/source.js"
 */

import { cssColors, penOn } from "../../core/draw/canvas.js";
import { element } from "../../core/draw/dom.js";
import { scaleFor, shadeTable, signColor } from "../../core/draw/colors.js";
import { percent, visible } from "../../core/text/text.js";
import { track } from "../../marks/cards.js";
import { dimensionAt, drawStrip, frameCell } from "../../marks/strips.js";

const HEIGHT = 26;

/**
 * @typedef {object} Shown
 * @property {Float32Array | null} vector  null: the logits
 * @property {Candidate[]} candidates
 * @property {number} dimension
 * @property {"light" | "dark"} theme
 * @property {"model" | "head" | "mlp" | "vocabulary"} of
 */

export class VectorStrip {
  /** @param {(dimension: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.caption = element("p", { class: "sum-caption" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.room = element("div", { class: "every-room" }, [this.canvas]);
    this.field = element("input", { type: "number", min: "0", step: "1", class: "every-field" });
    this.field.addEventListener("change", () => this.asked());
    this.list = element("ol", { class: "every-candidates" });
    this.root = element("div", { class: "every-strip" }, [this.caption, this.room, this.list]);
    /** @type {Shown | null} */
    this.now = null;
    this.room.addEventListener("click", ({ clientX }) => {
      const { left, width } = this.room.getBoundingClientRect();
      const at = this.now?.vector ? dimensionAt(clientX, left, width, this.now.vector.length) : -1;
      if (at >= 0) this.choose(at);
    });
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.room);
  }

  asked() {
    const value = Number(this.field.value);
    if (this.field.value && Number.isInteger(value) && value >= 0 && value <= Number(this.field.max)) this.choose(value);
  }

  /** @param {Shown} now */
  show(now) {
    this.now = now;
    const { vector, of, dimension } = now;
    const thing = { model: "dimension", head: "dimension", mlp: "neuron", vocabulary: "token" }[of];
    this.room.hidden = !vector;
    this.list.hidden = Boolean(vector);
    this.field.setAttribute("aria-label", thing);
    if (vector) {
      this.field.max = String(vector.length - 1);
      this.field.value = String(dimension);
      const all = `of ${vector.length}: click one, or write its number`;
      this.caption.replaceChildren(element("strong", {}, [`the ${thing} `]), this.field, ` ${all}`);
    } else {
      this.caption.replaceChildren(element("strong", {}, ["the token"]), " of the vocabulary, the most probable first");
      this.list.replaceChildren(...now.candidates.map((one) => this.item(one, now)));
    }
    this.draw();
  }

  /**
   * @param {Candidate} candidate
   * @param {Shown} now
   */
  item({ id, text, prob }, { dimension, theme }) {
    const button = element("button", { type: "button", class: "every-candidate", "aria-pressed": String(id === dimension) }, [
      element("bdi", {}, [visible(text.trim(), 20)]),
      track(prob, signColor(1, theme)),
      element("data", { value: String(prob) }, [percent(prob)]),
    ]);
    button.addEventListener("click", () => this.choose(id));
    return element("li", {}, [button]);
  }

  draw() {
    if (!this.now?.vector || !this.room.isConnected || !this.room.clientWidth) return;
    const { vector, dimension, theme } = this.now;
    const { ground, ink } = cssColors(this.canvas);
    const width = this.room.clientWidth;
    const pen = penOn(this.canvas, width, HEIGHT + 4);
    const strip = { numbers: vector, left: 0, width, top: 2, height: HEIGHT, scale: scaleFor(vector) };
    drawStrip(pen, strip, shadeTable(theme), ground);
    frameCell(pen, strip, dimension, ink);
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    return event.target === this.field;
  }
}
