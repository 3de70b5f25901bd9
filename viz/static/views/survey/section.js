/**
 * A part of the report: a heading, a sentence that says what is seen, and a figure whose heads can
 * be pointed at, chosen and walked through by keys, and which can be saved.
 *
 * @typedef {{x: number, y: number, place: number, panel: number}} Point
 *
 * @typedef {object} Drawing
 * @property {import("../../core/export/figure.js").Figure} figure
 * @property {Point[]} points  of heads, in the figure
 * @property {(point: Point) => string} said  what a point says of its head
 * @property {string} sentence
 *
 * @typedef {object} Look  what a drawing depends on
 * @property {number} width  CSS pixels
 * @property {"light" | "dark"} theme
 * @property {ReturnType<typeof import("../../core/draw/css_colors.js").cssColors>} colors
 * @property {import("./state.js").State} state
 *
 * @typedef {object} Part
 * @property {string} id
 * @property {string} heading
 * @property {HTMLElement[]} [controls]
 * @property {(state: import("./state.js").State) => void} [update]  of its controls
 * @property {(look: Look) => Drawing} draw
 * @property {HTMLElement[]} [below]
 * @property {() => void} [opened]  after a head was chosen in it by a click or by Enter
 * @property {boolean} [onlyPointed]  points say something only while a pointer is there
 * @property {number} [room]  CSS pixels beside a point that belong to it
 */

import { cssColors } from "../../core/draw/css_colors.js";
import { element } from "../../core/draw/dom.js";
import { createExport } from "../../core/export/export.js";
import { paintOn } from "../../core/export/pen_canvas.js";

/** @type {Record<string, [number, number]>} */
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
/** CSS pixels from a point within which a pointer means it. */
const NEAR = 18;
/** Pixels of the canvas in a CSS pixel, at least: figures are printed, too. */
const SHARP = 2;

export class Section {
  /**
   * @param {Part} part
   * @param {import("./data.js").Survey} survey
   * @param {import("./state.js").Store} store
   * @param {() => "light" | "dark"} theme
   */
  constructor(part, survey, store, theme) {
    this.part = part;
    this.survey = survey;
    this.store = store;
    this.theme = theme;
    /** @type {Drawing | null} */
    this.drawing = null;
    this.painted = "";
    this.sentence = element("p", { class: "seen" });
    this.canvas = element("canvas");
    this.board = element("div", { class: "board", tabindex: "0", role: "application" }, [this.canvas]);
    this.readout = element("p", { class: "readout" });
    const view = { figure: async () => this.draw().figure };
    this.giving = createExport(() => [{ name: part.id, view }]);
    const { controls = [], below = [] } = part;
    const top = element("div", { class: "top" }, [element("h2", { id: part.id }, [part.heading]), this.giving.root]);
    const tools = element("div", { class: "tools" }, controls);
    this.root = element("section", { class: "part", "aria-labelledby": part.id }, [
      top, this.sentence, tools, this.board, this.readout, ...below,
    ]);
    this.listen();
  }

  listen() {
    this.board.addEventListener("pointermove", (event) => this.point(this.at(event)));
    this.board.addEventListener("pointerleave", () => this.point(null));
    this.board.addEventListener("click", (event) => {
      const point = this.at(event);
      if (point) this.choose(point.place);
    });
    this.board.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const step = STEPS[event.key];
      if (step) this.walk(step);
      else if (event.key === "Enter") this.part.opened?.();
      if (step || event.key === "Enter") event.preventDefault();
    });
    // All figures follow the chosen head, and only the one in use is to be read out.
    this.board.addEventListener("focus", () => (this.readout.ariaLive = "polite"));
    this.board.addEventListener("blur", () => (this.readout.ariaLive = "off"));
    new ResizeObserver(() => this.update()).observe(this.board);
  }

  /** @param {[number, number]} step  layers and heads */
  walk([down, across]) {
    const { nLayers, nHeads } = this.survey;
    const { place } = this.store.get();
    const layer = Math.floor(place / nHeads) + down;
    const head = (place % nHeads) + across;
    if (layer < 0 || layer >= nLayers || head < 0 || head >= nHeads) return;
    this.store.set({ place: layer * nHeads + head });
  }

  /** @param {number} place */
  choose(place) {
    this.store.set({ place });
    this.part.opened?.();
  }

  /**
   * The head at the pointer.
   *
   * @param {MouseEvent} event
   */
  at({ clientX, clientY }) {
    const box = this.board.getBoundingClientRect();
    const [x, y] = [clientX - box.left, clientY - box.top];
    const apart = (/** @type {Point} */ point) => Math.hypot(point.x - x, point.y - y);
    const points = this.drawing?.points ?? [];
    const nearest = points.reduce((/** @type {Point | null} */ best, one) => (best && apart(best) <= apart(one) ? best : one), null);
    return nearest && apart(nearest) <= (this.part.room ?? NEAR) ? nearest : null;
  }

  /**
   * Says what a point is, or of none what the chosen head is.
   *
   * @param {Point | null} point
   */
  point(point) {
    const { place } = this.store.get();
    const points = this.part.onlyPointed ? [] : this.drawing?.points ?? [];
    const chosen = points.filter((one) => one.place === place);
    const shown = point ? [point] : chosen;
    const parts = shown.map((one) => this.drawing?.said(one)).join("; ");
    const text = shown.length ? `Head ${this.survey.nameOf(shown[0].place)}: ${parts}` : "";
    if (this.readout.textContent !== text) this.readout.textContent = text;
    this.board.classList.toggle("pointing", point !== null);
  }

  /** @returns {Drawing} */
  draw() {
    const width = Math.max(240, this.board.clientWidth);
    return this.part.draw({ width, theme: this.theme(), colors: cssColors(this.root), state: this.store.get() });
  }

  update() {
    if (!this.root.isConnected) return;
    const state = this.store.get();
    this.part.update?.(state);
    this.giving.update();
    const wanted = [this.board.clientWidth, devicePixelRatio, this.theme(), JSON.stringify(state)].join(" ");
    if (wanted === this.painted) return;
    this.painted = wanted;
    this.drawing = this.draw();
    const { figure, sentence } = this.drawing;
    this.sentence.textContent = sentence;
    paintOn(this.canvas, figure, Math.max(SHARP, devicePixelRatio || 1));
    this.canvas.style.width = `${figure.width}px`;
    this.canvas.style.height = `${figure.height}px`;
    this.board.setAttribute("aria-label", `${sentence} Arrow keys go from head to head.`);
    this.board.dataset.drawn = "true";
    this.point(null);
  }
}
