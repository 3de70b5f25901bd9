/**
 * What the report of a survey was given, as viz/survey_report.py writes it.
 *
 * Numbers of heads stand layer by layer, head by head; null where there is none.
 *
 * @typedef {(number | null)[]} OfHeads
 *
 * @typedef {object} Measure
 * @property {string} name
 * @property {string} words
 * @property {string} source
 * @property {"share" | "nats" | "number"} unit
 * @property {number} documents  that it applies to
 * @property {OfHeads} mean
 * @property {OfHeads} low  of the 95 % confidence interval over documents
 * @property {OfHeads} high
 * @property {[number, number][][]} examples  for each head the best documents, and their scores
 *
 * @typedef {object} PatternExample
 * @property {number} document
 * @property {number} query  its position
 * @property {string} query_token
 * @property {number | null} key  its position; null where that is not known
 * @property {string} key_token
 * @property {number} score  of the row: its attention on all keys that the pattern means
 *
 * @typedef {object} PatternHead
 * @property {number} place
 * @property {boolean} named  the head is known by this pattern
 * @property {PatternExample[]} examples
 *
 * @typedef {object} Pattern
 * @property {string} name
 * @property {string} words
 * @property {string} source
 * @property {number} documents
 * @property {OfHeads} score
 * @property {OfHeads} low
 * @property {OfHeads} high
 * @property {OfHeads} baseline
 * @property {PatternHead[]} heads  those that it names and the best others, the highest first
 *
 * @typedef {["query" | "key" | "value", string, number, number, number | null]} Edge  a side of a
 *   head, who wrote there, the head's place, how much, and the composition score of both
 *
 * @typedef {object} Header
 * @property {string} title
 * @property {number} n_layers
 * @property {number} n_heads
 * @property {[string, string][]} facts
 * @property {string} command
 * @property {string} size  of model and corpus, in a line
 * @property {string[]} notes
 * @property {string[]} documents  their ids
 * @property {Measure[]} measures
 * @property {{reach: number, mass: number[][]} | null} profile  for each head, from -reach to reach
 * @property {Pattern[]} patterns
 * @property {Edge[]} edges  who feeds whom; none where it was not asked
 * @property {string} pages  the file with pages of examples; empty: none
 * @property {[number, number, number, number[]][]} links  document, layer, its number in that file, and its heads
 */
import { short, written } from "../../core/text/numbers.js";
import { percent } from "../../core/text/text.js";

export class Survey {
  /** @param {Header} header */
  constructor(header) {
    this.header = header;
    this.nLayers = header.n_layers;
    this.nHeads = header.n_heads;
    this.size = this.nLayers * this.nHeads;
    const patterns = header.patterns.map((pattern) => asMeasure(pattern, this.size));
    this.measures = [...header.measures, ...patterns];
    this.byName = new Map(this.measures.map((measure) => [measure.name, measure]));
    this.pageOf = new Map(header.links.flatMap(([document, layer, number, heads]) =>
      heads.map((head) => [`${document} ${layer} ${head}`, number]),
    ));
  }

  /** A measure that some head has a number for that is not 0. @param {string} name */
  found(name) {
    const measure = this.byName.get(name);
    return measure?.mean.some(Boolean) ? measure : null;
  }

  /** Layer and head, with a hyphen at which no line ends. @param {number} place */
  nameOf(place) {
    return `${Math.floor(place / this.nHeads)}\u2011${place % this.nHeads}`;
  }

  /**
   * Where a page of this head in this document is, or "".
   *
   * @param {number} document
   * @param {number} place
   * @param {PatternExample} [example]  the tokens to open it with
   */
  linkTo(document, place, example) {
    const [layer, head] = [Math.floor(place / this.nHeads), place % this.nHeads];
    const number = this.pageOf.get(`${document} ${layer} ${head}`);
    if (number === undefined) return "";
    const asked = new URLSearchParams({ example: String(number), layer: String(layer), heads: String(head) });
    if (example && example.key !== null) {
      asked.set("query", String(example.query));
      asked.set("key", String(example.key));
    }
    return `${this.header.pages}#${asked}`;
  }
}

/**
 * The scores of a pattern, to be looked at as those of a measure.
 *
 * @param {Pattern} pattern
 * @param {number} size
 * @returns {Measure}
 */
function asMeasure({ name, words, source, documents, score: mean, low, high, heads }, size) {
  /** @type {[number, number][][]} */
  const examples = Array.from({ length: size }, () => []);
  for (const { place, examples: found } of heads) {
    examples[place] = found.map(({ document, score }) => [document, score]);
  }
  return { name: `pattern:${name}`, words: `pattern: ${words}`, source, unit: "share", documents, mean, low, high, examples };
}

/** @param {number | null} value @param {Measure["unit"]} unit */
export function textOf(value, unit) {
  if (value === null) return "none";
  if (unit === "share") return percent(value);
  if (unit === "nats") return `${written(value, 2)} nats`;
  return Math.abs(value) < 0.001 ? written(value, 3) : short(value);
}

/** The mean of a head and its confidence interval. @param {Measure} measure @param {number} place */
export function withInterval({ mean, low, high, unit, documents }, place) {
  const [value, least, most] = [mean[place], low[place], high[place]];
  if (value === null) return "no row counts";
  const of = `${documents} document${documents === 1 ? "" : "s"}`;
  if (least === null || most === null) return `${textOf(value, unit)} (${of})`;
  // Nothing that is measured is below 0; the interval of a mean close to it may be.
  return `${textOf(value, unit)} (95\u202f% interval ${textOf(Math.max(0, least), unit)} to ${textOf(most, unit)}, ${of})`;
}

/** The place with the largest number, or -1. @param {OfHeads} numbers @param {(value: number) => number} [of] */
export function largest(numbers, of = (value) => value) {
  let best = -1;
  numbers.forEach((value, place) => {
    if (value !== null && (best < 0 || of(value) > of(/** @type {number} */ (numbers[best])))) best = place;
  });
  return best;
}

/**
 * What the report shows, in one place and in its address.
 *
 * @typedef {object} State
 * @property {"auto" | "light" | "dark"} theme
 * @property {number} place  the head that is chosen: layer times heads plus head
 * @property {string} measure  that the grid is coloured by
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 */

/** @param {State} state @param {State} start @param {number} nHeads */
export function toHash(state, start, nHeads) {
  const asked = new URLSearchParams();
  for (const name of /** @type {const} */ (["theme", "measure"])) {
    if (state[name] !== start[name]) asked.set(name, state[name]);
  }
  if (state.place !== start.place) asked.set("head", `${Math.floor(state.place / nHeads)}-${state.place % nHeads}`);
  return asked.toString();
}

/**
 * The state that an address asks for; what this report does not have is passed over.
 *
 * @param {string} hash
 * @param {State} start
 * @param {{nLayers: number, nHeads: number, measures: string[]}} known
 * @returns {State}
 */
export function fromHash(hash, start, { nLayers, nHeads, measures }) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  /** @param {string} name @param {readonly string[]} possible */
  const one = (name, possible) => possible.find((value) => value === asked.get(name));
  const [, layer, head] = /^(\d{1,4})-(\d{1,4})$/.exec(asked.get("head") ?? "") ?? [];
  const there = layer !== undefined && Number(layer) < nLayers && Number(head) < nHeads;
  const state = {
    theme: one("theme", ["light", "dark"]),
    place: there ? Number(layer) * nHeads + Number(head) : undefined,
    measure: one("measure", measures),
  };
  const given = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined));
  return { ...start, ...given };
}
