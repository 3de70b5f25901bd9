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
    /** Layer and head of each place, as the address writes them. */
    this.heads = Array.from({ length: this.nLayers * this.nHeads }, (_, place) => `${Math.floor(place / this.nHeads)}-${place % this.nHeads}`);
    const patterns = header.patterns.map((pattern) => asMeasure(pattern, this.heads.length));
    this.measures = [...header.measures, ...patterns];
    this.byName = new Map(this.measures.map((measure) => [measure.name, measure]));
    this.pageOf = new Map(header.links.flatMap(([document, layer, number, heads]) =>
      heads.map((head) => [`${document} ${layer} ${head}`, number]),
    ));
  }

  /** Layer and head, with a hyphen at which no line ends. @param {number} place */
  nameOf(place) {
    return this.heads[place].replace("-", "\u2011");
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

/** The 95 % confidence interval of a head's mean over documents. @param {Measure} measure @param {number} place */
export function intervalOf({ low, high, unit }, place) {
  const [least, most] = [low[place], high[place]];
  // Nothing that is measured is below 0; the interval of a mean close to it may be.
  return least === null || most === null ? "–" : `${textOf(Math.max(0, least), unit)} to ${textOf(most, unit)}`;
}

/** The place with the largest number, or -1. @param {OfHeads} numbers */
export function largest(numbers) {
  return numbers.reduce((/** @type {number} */ best, value, place) => (value !== null && (best < 0 || value > Number(numbers[best])) ? place : best), -1);
}

/** The mean of the numbers that are there; null of none. @param {OfHeads} numbers */
export function meanOf(numbers) {
  const known = numbers.filter((one) => one !== null);
  return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : null;
}

/**
 * What the report shows, in one place and in its address.
 *
 * @typedef {object} State
 * @property {string} theme  auto, light or dark
 * @property {string} head  the one that is chosen: layer-head
 * @property {string} measure  that the grid is coloured by
 *
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(listener: () => void) => void} subscribe
 */

/** @param {State} state @param {State} start */
export function toHash(state, start) {
  const names = /** @type {(keyof State)[]} */ (Object.keys(state));
  return String(new URLSearchParams(names.flatMap((name) => (state[name] === start[name] ? [] : [[name, state[name]]]))));
}

/**
 * The state that an address asks for; what this report does not have is passed over.
 *
 * @param {string} hash
 * @param {State} start
 * @param {Record<keyof State, string[]>} known
 * @returns {State}
 */
export function fromHash(hash, start, known) {
  const asked = [...new URLSearchParams(hash.replace(/^#/, ""))];
  return { ...start, ...Object.fromEntries(asked.filter(([name, value]) => Object.hasOwn(known, name) && known[/** @type {keyof State} */ (name)].includes(value))) };
}
