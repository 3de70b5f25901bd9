/**
 * One weight told in steps: multiply, add up, scale, mask, softmax, take the value along.
 *
 * @typedef {object} Story  all that is told
 * @property {Example} example
 * @property {Vectors} vectors
 * @property {Row} row
 * @property {number} key
 * @property {Float64Array} products
 * @property {string} order
 * @property {"light" | "dark"} theme
 * @property {string} color  the head's
 * @property {string} where
 * @property {string} shared  which heads share the key, where several do
 * @property {number | null} elsewhere  the weight that other pictures show, where an edit changed it
 *
 * @import { Example, Vectors } from "../../core/data/example.js"
 * @import { Row } from "../../core/data/softmax.js"
 * @import { CssColors } from "../../core/draw/canvas.js"
 * @import { Figure } from "../../core/export/figure.js"
 */
import { productApart, unturned } from "../../core/data/rotation.js";
import { reach } from "../../core/data/sharing.js";
import { dimensions, sees, sumsOf, vectorOf } from "../../core/data/softmax.js";
import { signColor } from "../../core/draw/colors.js";
import { element } from "../../core/draw/dom.js";
import { counted, share, signed, written } from "../../core/text/numbers.js";
import { tokenName } from "../../core/text/text.js";
import { numeral, track } from "../../marks/cards.js";
import { drawBars } from "../../marks/strips.js";
import { formula, named, numberTables, step, words } from "./elements.js";

/** Rows of the softmax that are listed: all of a short text, else the largest. */
const SHORT = 14;
const LISTED = 10;

/** @param {Story} story */
const queryOf = ({ example, row }) => named(example.tokens, row.query);
/** @param {Story} story */
const keyOf = ({ example, key }) => named(example.keyTokens, key);

/** @param {Vectors} vectors */
function precisionOf({ exact, within }) {
  if (exact) return "Exact: query and key are here in single precision, as the model had them.";
  if (within === null) return "Rounded: query and key are here in half precision, three digits of each; all that follows is computed from these.";
  // Rounded up, since it is promised.
  const place = 10 ** (Math.floor(Math.log10(within || 1)) - 1);
  const bound = (Math.ceil(within / place) * place).toPrecision(2);
  return `Rounded: each number of query and key is within ${bound} of the model's, and the weight within 0.4\u202f%; all that follows is computed from these.`;
}

/** What it all comes to. @param {Story} story */
export function answer(story) {
  const { row, key, where, vectors, elsewhere } = story;
  const weight = numeral("answer", row.weights[key], share(row.weights[key]));
  const parts = [
    element("p", { class: "where" }, [where]),
    element("h2", { class: "sum-title" }, [queryOf(story), " looks at ", keyOf(story), " with ", weight]),
    element("p", { class: "sum-precision", "data-exact": String(vectors.exact) }, [precisionOf(vectors)]),
  ];
  const { edited, apart } = story.example.header;
  if (edited) {
    const shown = elsewhere === null ? "the weights" : `${share(elsewhere)} for this pair`;
    const note = `${apart ?? "This trace was edited."} The other pictures show ${shown} as ${apart ? "the model has it" : "the edit left it"}. Here it is as query and key make it.`;
    parts.push(element("p", { class: "sum-edited" }, [note]));
  }
  return parts;
}

/** @param {Story} story @param {HTMLElement} picture @param {HTMLElement} readout @param {HTMLElement} switches */
export function multiply(story, picture, readout, switches) {
  const { vectors, row, key, products, order } = story;
  const { width } = vectors;
  const numbersOf = (/** @type {number} */ i) => [
    vectors.query[row.query * width + i],
    vectors.key[key * width + i],
    products[i],
  ];
  const tables = numberTables("products", ["q", "k", "q × k"], dimensions(products, order), numbersOf);
  const details = element("details", { open: "" }, [element("summary", {}, [`All ${width} products in numbers`]), tables]);
  return step("multiply", "Multiply", [
    words(queryOf(story), " has a query ", element("var", {}, ["q"]), ", ", keyOf(story), " a key ", element("var", {}, ["k"]), `: ${counted(width, "number")} each. They are multiplied number by number.${story.shared && ` ${story.shared}`}`),
    switches,
    picture,
    readout,
    details,
  ]);
}

/** @param {Story} story */
export function addUp({ products, theme }) {
  const { all, above, below, nAbove, nBelow } = sumsOf(products);
  const largest = Math.max(above, -below) || 1;
  return step("sum", "Add them up", [
    formula("_q_ · _k_ = ", numeral("above", above), " − ", numeral("below", below, written(-below)), " = ", numeral("sum", all)),
    element("ul", { class: "bars sum-sides" }, [
      side(`${nAbove} above zero`, above, above / largest, signColor(1, theme)),
      side(`${nBelow} below zero`, below, -below / largest, signColor(-1, theme)),
    ]),
    words("The larger the sum, the better the query fits the key."),
  ]);
}

/** @param {string} name @param {number} value @param {number} part @param {string} color */
export function side(name, value, part, color) {
  const number = element("data", { value: String(value) }, [signed(value)]);
  return element("li", { class: "bar" }, [element("span", { class: "sum-side" }, [name]), track(part, color), number]);
}

/** @param {Story} story */
export function scaleDown({ vectors, products, row, key }) {
  const { scale, width } = vectors;
  const usual = Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
  const sum = sumsOf(products).all;
  const score = numeral("score", row.scores[key]);
  const factor = numeral("scale", scale, written(scale, 4));
  const line = usual
    ? formula("_score_ = _q_ · _k_ / √", String(width), " = ", numeral("sum", sum), " × ", factor, " = ", score)
    : formula("_score_ = _q_ · _k_ × ", factor, " = ", numeral("sum", sum), " × ", factor.cloneNode(true), " = ", score);
  const why = usual
    ? `A sum of ${counted(width, "product")} grows with the root of their number; dividing by √${width} undoes that.`
    : "This layer has a scale of its own.";
  return step("scale", "Scale", [line, words(why)]);
}

/** @param {Story} story */
export function mask(story) {
  const { example, row, key, vectors } = story;
  const window = reach(vectors.window, example.causal);
  if (!example.causal && !window) {
    return step("mask", "Mask", [words("No key is masked: this model reads in both directions.")]);
  }
  const count = row.end - row.first;
  const hidden = vectors.nKeys - count;
  const place = `${counted(count, "key")} may be looked at, ${hidden} ${hidden === 1 ? "is" : "are"} masked.`;
  const seen = sees(row, key);
  const line = seen
    ? formula("_score_ = ", numeral("masked-score", row.capped[key]))
    : formula("_score_ = ", numeral("masked-score", -Infinity), " instead of ", numeral("unmasked", row.capped[key]));
  const ways = [example.causal ? "This model reads in one direction: a token looks at itself and back." : "", window, place];
  return step("mask", "Mask", [words(ways.filter(Boolean).join(" ")), line, words(keyOf(story), ...verdict(story, seen))]);
}

/** Why the key is masked, or is not. @param {Story} story @param {boolean} seen */
function verdict(story, seen) {
  const { row, key } = story;
  if (row.query === key) return [" is the token itself: not masked."];
  const side = key < row.query ? " comes before " : " comes after ";
  if (seen) return [side, queryOf(story), ": not masked."];
  const far = key < row.query || !story.example.causal;
  return [side, queryOf(story), `${far ? ", outside the window" : ""}: masked, whatever its score.`];
}

/** @param {Story} story */
export function softmaxStep(story) {
  const { row, key } = story;
  const top = numeral("largest", row.capped[row.strongest]);
  const exp = numeral("exp", row.exps[key]);
  const denominator = numeral("denominator", row.denominator);
  const weight = numeral("weight", row.weights[key], share(row.weights[key]));
  const score = sees(row, key) ? row.capped[key] : -Infinity;
  return step("softmax", "Softmax", [
    words("Every score becomes positive by the exponential, and its share of their sum is the weight. The largest score of the row is taken off first; it cancels out."),
    formula("exp(_score_ − largest) = exp(", written(score), " − ", bracketed(top), ") = ", exp),
    formula("_weight_ = ", exp.cloneNode(true), " / ", denominator, " = ", weight),
    softmaxTable(story),
  ]);
}

/** @param {HTMLDataElement} number */
function bracketed(number) {
  return Number(number.value) < 0 ? element("span", {}, ["(", number, ")"]) : number;
}

/** @param {Story} story */
function softmaxTable(story) {
  const { row, vectors } = story;
  const keys = listedKeys(story);
  const listed = new Set(keys);
  const unlisted = Array.from({ length: vectors.nKeys }, (_, i) => i).filter((i) => !listed.has(i));
  const [others, hidden] = [unlisted.filter((i) => sees(row, i)), unlisted.filter((i) => !sees(row, i))];
  const rows = keys.map((key) => keyRow(story, key));
  const total = (/** @type {Float64Array} */ numbers) => others.reduce((sum, i) => sum + numbers[i], 0);
  if (others.length) rows.push(restRow("others", `${counted(others.length, "other key")}`, total(row.exps), total(row.weights), story.color));
  if (hidden.length) rows.push(restRow("masked", `${counted(hidden.length, "masked key")}`, 0, 0, story.color));
  const score = vectors.softCap ? "capped score" : "score";
  const names = ["key", score, `${score} − largest`, "exp", "weight"];
  const head = element("tr", {}, names.map((name) => element("th", { scope: "col" }, [name])));
  const sum = element("tr", { class: "sum-total" }, [
    element("th", { scope: "row" }, ["sum"]),
    element("td"),
    element("td"),
    element("td", {}, [written(row.denominator)]),
    element("td", {}, ["100\u202f%"]),
  ]);
  return element("table", { class: "sum-softmax" }, [element("thead", {}, [head]), element("tbody", {}, rows), element("tfoot", {}, [sum])]);
}

/** @param {Story} story @returns {number[]} */
function listedKeys({ row, key, vectors }) {
  const all = Array.from({ length: vectors.nKeys }, (_, i) => i);
  if (all.length <= SHORT) return all;
  const largest = all.slice(row.first, row.end).sort((a, b) => row.weights[b] - row.weights[a] || a - b).slice(0, LISTED);
  return largest.includes(key) ? largest : [...largest, key];
}

/** @param {Story} story @param {number} key */
function keyRow({ example, row, key: chosen, color }, key) {
  const masked = !sees(row, key);
  const score = masked ? -Infinity : row.capped[key];
  const cells = [score, score - row.capped[row.strongest], row.exps[key]].map((value) =>
    element("td", { "data-value": String(value) }, [written(value)]),
  );
  if (masked) cells[0].textContent = "masked";
  const weight = element("td", { "data-value": String(row.weights[key]) }, [track(row.weights[key], color), share(row.weights[key])]);
  const made = element("tr", { class: key === chosen ? "chosen" : "" }, [
    element("th", { scope: "row" }, [named(example.keyTokens, key, 24)]),
    ...cells,
    weight,
  ]);
  made.classList.toggle("masked", masked);
  made.dataset.key = String(key);
  return made;
}

/** @param {string} id @param {string} name @param {number} exps @param {number} weight @param {string} color */
function restRow(id, name, exps, weight, color) {
  const made = element("tr", { class: "rest" }, [
    element("th", { scope: "row" }, [name]),
    element("td", {}, [id === "masked" ? "masked" : ""]),
    element("td"),
    element("td", { "data-value": String(exps) }, [written(exps)]),
    element("td", { "data-value": String(weight) }, [track(weight, color), share(weight)]),
  ]);
  made.dataset.rest = id;
  return made;
}

/**
 * What this key hands on to the token that looks.
 *
 * @param {Story} story
 * @param {HTMLElement} picture
 * @param {HTMLElement} readout
 * @param {HTMLElement} numbers  filled when it is opened
 */
export function takeAlong(story, picture, readout, numbers) {
  const weight = numeral("value-weight", story.row.weights[story.key], share(story.row.weights[story.key]));
  return step("value", "Take the value along", [
    words(keyOf(story), " has a value ", element("var", {}, ["v"]), " too. Of it, ", queryOf(story), " gets this share; with those of all other keys it adds up to ", element("var", {}, ["z"]), ", what the head hands on."),
    formula("_weight_ × _v_ = ", weight, " × _v_"),
    picture,
    readout,
    numbers,
  ]);
}

/** That there is no value to take along. @param {Story} story */
export function withoutValue({ row, key }) {
  const why = sees(row, key) ? "This page was made without values." : "Here it is 0: nothing is taken along.";
  return step("value", "Take the value along", [words("The weight then multiplies the value of the key. ", why)]);
}

/**
 * The steps that not every model has: turned by position (rotary), squeezed by a soft cap.
 */

/** Distances in tokens that are compared with the pair's own. */
const DISTANCES = [0, 1, 2, 4, 8, 16, 32];

/**
 * What turning by position makes of the product: that of the same two tokens, not turned and further
 * apart or nearer.
 *
 * @param {Story} story
 * @returns {HTMLElement[]}
 */
export function turned({ vectors, row, key, products, theme }) {
  const { rotary, width } = vectors;
  if (!rotary) return [];
  const [query, keyed] = [vectorOf(vectors.query, row.query, width), vectorOf(vectors.key, key, width)];
  const plain = unturned(keyed, rotary, key);
  const before = unturned(query, rotary, row.query).reduce((sum, value, i) => sum + value * plain[i], 0);
  const own = row.query - key;
  const sign = own < 0 ? -1 : 1;
  const apart = [...new Set([...DISTANCES, Math.abs(own)])].sort((a, b) => a - b);
  const found = apart.map((distance) => ({
    distance,
    product: productApart(query, keyed, rotary, { at: row.query, keyAt: key, apart: sign * distance }),
  }));
  const largest = Math.max(...found.map(({ product }) => Math.abs(product))) || 1;
  const bars = found.map(({ distance, product }) => {
    const here = distance === Math.abs(own) ? ", as here" : "";
    const bar = side(`${distance} apart${here}`, product, Math.abs(product) / largest, signColor(product, theme));
    bar.dataset.apart = String(distance);
    return bar;
  });
  const turnedSide = 2 * rotary.frequencies.length;
  const how = turnedSide < width ? `The first ${turnedSide} of ${width} numbers of query and key` : "Query and key";
  return [
    step("turn", "Turned by position", [
      words(`${how} are shown after rotation: two and two were turned by position × frequency. The same pair of tokens at another distance gives another product; here the key stands ${own ? `${counted(Math.abs(own), "token")} ${own > 0 ? "behind" : "ahead"}` : "where the query stands"}.`),
      formula("not turned: _q_ · _k_ = ", numeral("unturned", before), "; turned: _q_ · _k_ = ", numeral("turned", sumsOf(products).all)),
      element("ul", { class: "bars sum-sides" }, bars),
    ]),
  ];
}

/** @param {Story} story @returns {HTMLElement[]} */
export function cap({ vectors: { softCap }, row, key }) {
  if (!softCap) return [];
  const most = written(softCap, 0);
  return [
    step("cap", "Soft cap", [
      formula("_capped score_ = ", `${most} × tanh(`, numeral("before-cap", row.scores[key]), ` / ${most}) = `, numeral("capped", row.capped[key])),
      words(`Scores are squeezed into −${most} to ${most}: small ones stay nearly as they are, none grows beyond.`),
    ]),
  ];
}

/**
 * The arithmetic of one weight as a figure to take away: the products as bars, and the sum.
 */

const WIDTH = 720;
const LEFT = 32;
const TOP = 84;
const TALL = 160;

/**
 * @param {Story} story
 * @param {CssColors} colors
 * @returns {Figure}
 */
export function arithmeticFigure(story, { ink, soft, paper }) {
  const { example, vectors, row, key, products } = story;
  const names = [tokenName(example.tokens, row.query), tokenName(example.keyTokens, key)];
  const { width } = vectors;
  return {
    name: "arithmetic",
    width: WIDTH,
    height: TOP + TALL + 148,
    paper,
    paint(pen) {
      pen.text(LEFT, 34, `${names[0]} looks at ${names[1]} with ${share(row.weights[key])}`, { size: 20, color: ink, bold: true });
      pen.text(LEFT, 58, `${story.where}: ${width} products of query and key`, { size: 13, color: soft });
      const numbers = dimensions(products, story.order).map((dimension) => products[dimension]);
      drawBars(pen, { numbers, left: LEFT, width: WIDTH - 2 * LEFT, top: TOP, height: TALL }, story.theme, soft);
      lines(story).forEach((line, i) => pen.text(LEFT, TOP + TALL + 40 + 26 * i, line, { size: 15, color: ink }));
    },
    columns: ["dimension", "query", "key", "product"],
    *rows() {
      for (let i = 0; i < width; i += 1) {
        yield [i, vectors.query[row.query * width + i], vectors.key[key * width + i], products[i]];
      }
    },
  };
}

/** @param {Story} story */
function lines({ vectors, row, key, products }) {
  const score = written(row.scores[key]);
  const masked = !sees(row, key);
  const capped = vectors.softCap ? `, capped ${written(row.capped[key])}` : "";
  return [
    `q · k = ${written(sumsOf(products).all)}`,
    `score = q · k × ${written(vectors.scale, 4)} = ${score}${capped}${masked ? ", masked: −∞" : ""}`,
    `exp(score − ${written(row.capped[row.strongest])}) = ${written(row.exps[key])}`,
    `weight = ${written(row.exps[key])} / ${written(row.denominator)} = ${share(row.weights[key])}`,
  ];
}
