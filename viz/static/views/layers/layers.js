/**
 * The layers view: what each layer would predict at each position, read by the model's own head.
 *
 * A table of HTML: a row a position, a column a place in the model; the last column is what the model answers.
 *
 * @import { Lens } from "../../core/data/data.js"
 * @import { Example } from "../../core/data/example.js"
 * @import { Kind, Stage } from "../../core/frame/kinds.js"
 */

import { Staged } from "../../core/frame/kinds.js";
import { sentenceOfLens } from "../../core/data/sentence.js";
import { usualQuery } from "../../core/data/softmax.js";
import { signColor, strongest, withAlpha } from "../../core/draw/colors.js";
import { walk } from "../../core/draw/controls.js";
import { element, tokenChip } from "../../core/draw/dom.js";
import { pageFigure } from "../../core/export/page_figure.js";
import { tokenName, visible } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { bar, createRamp, legendOf } from "../../marks/cards.js";

/** @typedef {{row: number, point: number}} Cell */

class LayersView extends Staged {
  /** @param {Stage} stage */
  constructor(stage) {
    super(stage);
    /** There once it was asked for: a model behind the page works it out. @type {Lens | null} */
    this.lens = null;
    this.rows = /** @type {HTMLTableRowElement[]} */ ([]);
    this.root = element("div", { class: "layers-view" });
    this.card = element("div", { role: "group", class: "details layers-card", "aria-live": "polite", "aria-label": "Predictions in numbers" });
    this.ramp = createRamp();
    this.side = [this.card, createLayersLegend(this.ramp.parts, stage.example.header.causal)];
    this.pointed = /** @type {Cell | null} */ (null);
    /** The column that the kept position was chosen in. @type {number | null} */
    this.kept = null;
    this.shaded = "";
  }

  async update() {
    const lens = await this.example.lens();
    if (!lens) throw new Error("this text has no predictions of its layers");
    if (!this.lens) this.build(lens);
    this.paint();
    this.root.dataset.drawn = "true";
  }

  /** @param {Lens} lens */
  build(lens) {
    this.lens = lens;
    const { tokens } = this.example;
    this.rows = tokens.text.map((_, row) => rowOf(tokens, lens, row));
    const names = lens.points.map((_, point) => {
      const { short, words } = placeOf(lens.points, point);
      return element("th", { class: "layers-point", scope: "col", title: words, "aria-label": words }, [short]);
    });
    const head = element("thead", {}, [element("tr", {}, [element("th", { class: "layers-corner", scope: "col" }, ["position"]), ...names])]);
    const body = element("tbody", {}, this.rows);
    const table = element("table", { class: "layers-table", role: "grid", "aria-label": "Predictions: a row a position, a column a layer" }, [head, body]);
    this.cellAt({ row: 0, point: lens.points.length - 1 }).tabIndex = 0;
    const scrolled = element("div", { class: "layers-body" }, [table]);
    this.root.append(scrolled);
    // Of a table that is wider than its room, the output is seen first.
    scrolled.scrollLeft = scrolled.scrollWidth;
    body.addEventListener("pointerover", (event) => event.pointerType !== "touch" && this.point(cellOf(event.target)));
    body.addEventListener("pointerleave", () => this.point(null));
    body.addEventListener("focusin", (event) => this.point(cellOf(event.target)));
    body.addEventListener("focusout", () => this.point(null));
    body.addEventListener("click", (event) => {
      const cell = cellOf(event.target);
      if (cell) this.keep(cell);
    });
  }

  /** @param {Cell} cell */
  cellAt({ row, point }) {
    return this.rows[row].cells[point + 1];
  }

  /** @param {Cell | null} cell */
  point(cell) {
    this.pointed = cell;
    this.tell();
  }

  /** Keeps a position, or lets it go: another cell of its row shows that cell instead. @param {Cell} cell */
  keep({ row, point }) {
    const again = this.store.get().query === row && this.kept === point;
    this.kept = again ? null : point;
    this.store.set({ query: again ? null : row, key: null, anchor: "query" });
  }

  /** @param {KeyboardEvent} event @returns {boolean} */
  keydown(event) {
    const { key, target } = event;
    if (key === "Escape") this.kept = null;
    if (super.keydown(event)) return true;
    const cell = cellOf(target);
    if (!cell || !this.lens) return false;
    if (key === "Enter" || key === " ") {
      this.keep(cell);
      return true;
    }
    return walk(event, this.rows.map(({ cells }) => [...cells].slice(1)));
  }

  paint() {
    const { query } = this.store.get();
    const theme = this.theme();
    const color = signColor(1, theme);
    const most = strongest(color, theme);
    this.rows.forEach((row, i) => row.classList.toggle("kept", i === query));
    if (this.shaded !== theme) {
      this.shaded = theme;
      for (const row of this.rows) for (const cell of [...row.cells].slice(1)) cell.style.backgroundColor = withAlpha(color, Number(cell.dataset.prob) * most);
      this.ramp.show(`linear-gradient(90deg, transparent, ${withAlpha(color, most)})`, ["0", "50\u202f%", "100\u202f%"]);
    }
    this.tell();
  }

  /** The card: the cell that is pointed at, or of the kept position. */
  tell() {
    const { lens } = this;
    const { query } = this.store.get();
    if (!lens) return;
    const kept = query === null ? null : { row: query, point: this.kept ?? lens.points.length - 1 };
    const cell = this.pointed ?? kept;
    if (!cell) {
      this.card.replaceChildren(element("p", { class: "hint" }, ["Point at a cell to see its five most probable tokens. Click it to keep its position."]));
      return;
    }
    const { row, point } = cell;
    // Tokens that stand in no text.
    const bars = lens.strings[point][row].map((token, i) => bar(tokenChip({ text: [token], raw: [null], special: [0], segment: [0], piece: [0] }, 0, 24), lens.probs[point][row][i], { color: signColor(1, this.theme()) }));
    this.card.replaceChildren(
      element("p", { class: "where" }, [`${placeOf(lens.points, point).words}, position ${row}`]),
      element("h2", {}, ["at ", tokenChip(this.example.tokens, row, 24)]),
      element("ul", { class: "bars" }, bars),
    );
  }

  says() {
    return this.lens ? sentenceOfLens(this.example, this.lens, this.position()) : [];
  }

  /** The position that is told of: the kept one, else a masked one, else where the text goes on or its last word. */
  position() {
    const { tokens, causal } = this.example;
    const { query } = this.store.get();
    if (query !== null) return query;
    // Before a model the page says itself what it is about.
    const predicted = this.example.source?.predicted ?? null;
    if (predicted !== null) return predicted;
    const masked = tokens.text.findIndex((text, i) => tokens.special[i] && /mask/i.test(text));
    if (masked >= 0) return masked;
    return causal ? tokens.text.length - 1 : usualQuery(tokens);
  }

  async figure() {
    await this.update();
    const { tokens } = this.example;
    const { points, strings, probs } = /** @type {Lens} */ (this.lens);
    return pageFigure(/** @type {HTMLElement} */ (this.root.querySelector("table")), "What each layer would predict", {
      name: "prediction-layers",
      columns: ["position", "token", "point", "rank", "prediction", "probability"],
      *rows() {
        for (const [row, token] of tokens.text.entries()) {
          for (const [point, name] of points.entries()) {
            for (const [rank, prediction] of strings[point][row].entries()) yield [row, token, name, rank + 1, prediction, probs[point][row][rank]];
          }
        }
      },
    });
  }
}

/** @type {Kind} */
export const layersKind = {
  id: "layers",
  label: "Layers",
  title: "What each layer would predict at each position",
  missing: ({ header: { lens } }) =>
    lens ? "" : "This model has no output head over words, or the page was made without its predictions.",
  oneHead: false,
  controls: [],
  create: (stage) => new LayersView(stage),
};

/** @param {Example["tokens"]} tokens @param {Lens} lens @param {number} row */
function rowOf(tokens, { points, strings, probs }, row) {
  const answer = strings[points.length - 1][row][0];
  const name = element("th", { class: `layers-name${tokens.special[row] ? " special" : ""}`, scope: "row" }, [element("bdi", {}, [tokenName(tokens, row)])]);
  const cells = points.map((_, point) => {
    const best = strings[point][row][0];
    const cell = element("td", { class: `layers-cell${best === answer ? " same" : ""}`, tabindex: "-1" }, [element("bdi", {}, [visible(best.trim() || best.replace(/ /g, "·"), 40)])]);
    Object.assign(cell.dataset, { row: String(row), point: String(point), prob: String(probs[point][row][0]) });
    return cell;
  });
  const second = row > 0 && tokens.segment[row] !== tokens.segment[row - 1] ? " second" : "";
  const made = element("tr", { class: `layers-row${second}` }, [name, ...cells]);
  made.dataset.index = String(row);
  return made;
}

/** @param {EventTarget | null} target @returns {Cell | null} */
function cellOf(target) {
  const cell = target instanceof Element ? target.closest(".layers-cell") : null;
  return cell instanceof HTMLElement ? { row: Number(cell.dataset.row), point: Number(cell.dataset.point) } : null;
}

/**
 * A place in the model, as a column is named: "resid_post 3" is what layer 3 leaves.
 *
 * @param {string[]} points
 * @param {number} point
 * @returns {{short: string, words: string}}
 */
function placeOf(points, point) {
  const after = /^resid_post (\d+)$/.exec(points[point]);
  if (points[point] === "embed") return { short: "embed", words: "Before the first layer" };
  if (!after) return { short: visible(points[point], 20), words: visible(points[point], 40) };
  if (point === points.length - 1) return { short: `${after[1]} = output`, words: `After layer ${after[1]}, the output` };
  return { short: after[1], words: `After layer ${after[1]}` };
}

/** How to read the table. @param {(Node | string)[]} ramp @param {boolean} causal */
function createLayersLegend(ramp, causal) {
  const what = causal ? "the token that follows" : "the token that stands there";
  const parts = [
    ...ramp,
    `A row is a token, a column a layer: what the model would predict at that position, ${what}, if it stopped there. Its own output head reads what the layer leaves.`,
    "The darker a cell, the more probable its token. Bold: what the output says too.",
  ];
  return legendOf(parts, { "← ↑ → ↓": translated`move`, Enter: translated`keep`, Esc: "let go" });
}
