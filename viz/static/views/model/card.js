/** Beside the small pictures: the head that is pointed at, larger and in numbers; how to read it. */

import { STATISTICS, written } from "../../core/data/statistics.js";
import { penOf } from "../../core/draw/canvas.js";
import { channels, headColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { createRamp, legendOf } from "../../marks/cards.js";
import { inksOf, thumbPainter } from "./inks.js";

/** Device pixels a side of the larger picture, before the browser fits it. */
const SIDE = 448;
const KEYS = { "← ↑ → ↓": "move", Enter: "open" };

export class HeadCard {
  /**
   * @param {string} name  of the text, where there are several
   * @param {(head: number) => string} shared  which heads share its keys and values
   */
  constructor(name, shared) {
    this.shared = shared;
    this.sharing = element("p", { class: "hint" });
    this.where = element("p", { class: "where" }, [name ? `Attention of ${name}` : "Attention of"]);
    this.title = element("h2");
    this.canvas = element("canvas", { class: "model-large", "aria-hidden": "true" });
    this.canvas.width = SIDE;
    this.canvas.height = SIDE;
    this.rows = STATISTICS.map(statisticRow);
    this.open = element("p", { class: "hint" }, ["Click to open this head."]);
    const list = element("ul", { class: "bars" }, this.rows.map(({ row }) => row));
    this.body = element("div", { class: "model-body" }, [this.canvas, list]);
    this.hint = element("p", { class: "hint" }, [
      "Each square is one head. Point at one to see it larger and in numbers; click it to open it.",
    ]);
    this.root = element("section", { class: "details model-card", "aria-live": "polite" });
    this.root.setAttribute("aria-label", "One head in numbers");
    this.root.append(this.hint, this.where, this.title, this.body, this.sharing, this.open);
    this.show(null);
  }

  /**
   * @param {null | {place: number, layer: number, head: number, marked: string, color: string,
   *   ground: string, paper: string, thumbnails: import("../../core/data/example.js").Thumbnails,
   *   sizes: {nQueries: number, nKeys: number, causal: boolean},
   *   measures: import("../../core/data/measures.js").Measures}} head
   */
  show(head) {
    this.root.dataset.shows = head ? "head" : "hint";
    this.hint.hidden = head !== null;
    for (const part of [this.where, this.title, this.body, this.sharing, this.open]) part.hidden = head === null;
    if (!head) return;
    const { place, layer, measures, marked } = head;
    this.title.textContent = `Layer ${layer}, head ${head.head}`;
    this.sharing.textContent = this.shared(head.head);
    this.paint(head);
    this.rows.forEach(({ row, fill, number }, i) => {
      const statistic = STATISTICS[i];
      const value = measures.of(place, statistic.id);
      const missing = measures.finished || !measures.possible ? "–" : "…";
      number.textContent = place >= measures.done ? missing : written(statistic, value);
      number.value = Number.isNaN(value) ? "" : String(value);
      row.classList.toggle("marked", marked === statistic.id);
      if (!fill) return;
      fill.style.width = `${Number.isNaN(value) ? 0 : Math.min(value, 1) * 100}%`;
      fill.style.backgroundColor = head.color;
    });
  }

  /** @param {NonNullable<Parameters<HeadCard["show"]>[0]>} head */
  paint({ place, color, ground, paper, thumbnails, sizes }) {
    const pen = penOf(this.canvas);
    const image = pen.createImageData(SIDE, SIDE);
    const paint = thumbPainter(thumbnails, sizes, SIDE);
    paint(new Uint32Array(image.data.buffer), SIDE, 0, place, inksOf(color, ground, paper, 1));
    pen.putImageData(image, 0, 0);
  }
}

/** @param {import("../../core/data/statistics.js").Statistic} statistic */
function statisticRow({ id, label, says, unit }) {
  const number = element("data");
  const name = element("span", { class: "statistic" }, [label]);
  const fill = unit === "share" ? element("span", { class: "fill" }) : null;
  const track = element("span", { class: fill ? "track" : "no-track" }, fill ? [fill] : []);
  const row = element("li", { class: "bar", title: says }, [name, track, number]);
  row.dataset.statistic = id;
  return { row, fill, number };
}

/**
 * @param {boolean} pooled
 * @param {boolean} causal
 * @param {boolean} named  the page has names of heads
 * @param {string} shared  which heads share keys and values
 */
export function createModelLegend(pooled, causal, named, shared) {
  const ramp = createRamp();
  const sentences = [
    "Rows of a square are the tokens that look, from the first down; columns are the tokens that are looked at.",
    pooled ? "The text has more tokens than a square has cells: each shows the largest weight it covers." : "",
    causal ? "This model reads in one direction: nothing stands above the diagonal." : "",
    "A marked head spends at least half of its attention as the pattern says; a broad one has at least 80\u202f% of the largest possible entropy.",
    named ? "What a head is known for was found over many texts, before this page was made; here the number is its mean there." : "",
    shared && `${shared} A bracket above them joins such heads.`,
  ];
  const root = legendOf([...ramp.parts, ...sentences], KEYS);
  return {
    root,
    /** @param {string} ground @param {"light" | "dark"} theme */
    color(ground, theme) {
      const [from, to] = [channels(ground), channels(headColor(0, theme))];
      const colors = `linear-gradient(90deg, rgb(${from.join(",")}), rgb(${to.join(",")}))`;
      ramp.show(colors, ["0", "25\u202f%", "100\u202f%"]);
    },
  };
}
