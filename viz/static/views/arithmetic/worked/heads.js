/**
 * Quantities of single heads worked out, and what the heads add.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 */

import { sharing } from "../../../core/data/sharing.js";
import { tokenName } from "../../../core/text/text.js";
import { normSteps } from "./norms.js";
import { lineStep, sumStep, total } from "./steps.js";
import { dimensionName, linear, products, to } from "./teller.js";

/** Numbers that a server gives at once, and rows that are asked for at a time: it lets 64 questions wait. */
const [MOST_NUMBERS, AT_ONCE] = [2 ** 24, 32];

/**
 * A query, key or value as its matrix makes it, and its norm where it has one.
 *
 * @param {Teller} at
 * @param {string} id  of the step
 * @returns {Promise<Step[]>}
 */
export async function projected(at, id) {
  const name = id.replace("_unrotated", "");
  const { dHead } = at.source.shape;
  const head = name === "query" ? at.place.head : at.keyHead;
  const row = head * dHead + at.place.dimension;
  const letter = name[0].toUpperCase();
  const weight = `attention.${name}`;
  const [{ x, steps, to: way }, w, bias] = await Promise.all([at.input(id), at.weight(`${weight}.weight`, row), at.bias(`${weight}.bias`, row)]);
  const says = `One number of the ${name} is all ${x.length} numbers of the token, each times a number of W_${letter}, added up: how much the token has of what this row of W_${letter} asks for.`;
  const shared = name === "query" ? "" : sharing(at.example, at.place.head);
  const made = linear(shared ? `${says} ${shared}` : says, products(x, w, dimensionName, way), ["x", `W_${letter}`], bias);
  const { norm } = at.step(id);
  return [...steps, ...made, ...(norm ? await normOfHead(at, { weight, norm, head, x }) : [])];
}

/**
 * The norm of a query or key: over the numbers of its head, or of all heads.
 *
 * @param {Teller} at
 * @param {{weight: string, norm: string, head: number, x: Float32Array}} made  by which matrix, of what
 */
async function normOfHead(at, { weight, norm: name, head, x }) {
  const { dHead } = at.source.shape;
  const norm = await at.norm(name);
  const alone = at.built.queryKeyNorm === "head";
  const first = alone ? head * dHead : 0;
  const rows = await rowsOf(at, `${weight}.weight`, { first, count: norm.weight.length, width: x.length });
  const bias = await at.source.weights(`${weight}.bias`, at.place.layer, null);
  const all = Float32Array.from(rows, (w, i) => total(Array.from(w, (value, j) => value * x[j])) + (bias ? bias.values[first + i] : 0));
  const dimension = at.place.dimension + (alone ? 0 : head * dHead);
  return normSteps({ x: all, dimension, norm, whose: alone ? "of this head" : "of all heads" });
}

/**
 * Rows of a matrix: all at once with the rest of it, or where it is too large for that a few at a time.
 *
 * @param {Teller} at
 * @param {string} name
 * @param {{first: number, count: number, width: number}} rows
 */
async function rowsOf(at, name, { first, count, width }) {
  if (at.source.shape.heads * at.source.shape.dHead * width <= MOST_NUMBERS) {
    const all = await at.weight(name);
    return Array.from({ length: count }, (_, i) => all.subarray((first + i) * width, (first + i + 1) * width));
  }
  /** @type {Float32Array[]} */
  const found = [];
  while (found.length < count) {
    const some = Array.from({ length: Math.min(AT_ONCE, count - found.length) }, (_, i) => at.weight(name, first + found.length + i));
    found.push(...(await Promise.all(some)));
  }
  return found;
}

/**
 * A query or key turned by where its token stands (Su et al. 2021).
 *
 * @param {Teller} at
 * @param {"query" | "key"} name
 * @returns {Promise<Step[]>}
 */
export async function turned(at, name) {
  const { layer, position, dimension } = at.place;
  const { rotary } = at.example.looking(layer);
  if (!rotary) throw new RangeError(`layer ${layer} turns no queries and keys`);
  const { amplitude, frequencies } = rotary;
  const from = `${name}_unrotated`;
  const x = await at.headRow(from, name === "query" ? at.place.head : at.keyHead);
  const count = frequencies.length;
  const term = (/** @type {number} */ i, /** @type {number} */ factor) => ({ name: dimensionName(i), factors: [x[i], factor], value: x[i] * factor, to: to(from)(i) });
  if (dimension >= 2 * count) {
    const says = `Only the first ${2 * count} of ${x.length} numbers are turned by position. This one stays.`;
    return [sumStep("kept", "Not turned", says, [{ ...term(dimension, 1), factors: [] }])];
  }
  const frequency = frequencies[dimension % count];
  const angle = position * frequency;
  const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
  const [i, j] = [dimension % count, (dimension % count) + count];
  const says = `Dimensions ${i} and ${j} are a pair, which is turned like the hand of a clock: by where the token stands, times a frequency that is the pair's own. A product of query and key then depends on how far apart the two tokens are.`;
  const turn = `What the pair is after that, in this dimension: ${dimension < count ? "the first times the cosine, less the second times the sine" : "the second times the cosine, and the first times the sine"}.`;
  const scaled = amplitude === 1 ? [] : [["× amplitude: ", cosine * amplitude, " and ", sine * amplitude]];
  const terms = dimension < count ? [term(i, cosine * amplitude), term(j, -sine * amplitude)] : [term(j, cosine * amplitude), term(i, sine * amplitude)];
  return [
    lineStep("angle", "Angle", says, [
      [`_angle_ = position × frequency = ${position} × ${exactly(frequency)} = `, angle],
      ["cos(_angle_) = ", cosine],
      ["sin(_angle_) = ", sine],
      ...scaled,
    ], angle),
    sumStep("turn", "Turn", turn, terms, ["x", "turn"]),
  ];
}

/** With eight digits that matter, so that its product is right as written. @param {number} frequency */
function exactly(frequency) {
  const decimals = frequency > 0 ? 7 - Math.floor(Math.log10(frequency)) : 0;
  return frequency.toFixed(decimals).replace(/\.?0+$/, "");
}

/** @param {Teller} at */
export async function z(at) {
  const { dimension } = at.place;
  const [probs, values] = await Promise.all([at.headRow("probs"), at.ofHead("value", at.keyHead)]);
  const width = values.length / probs.length;
  const own = Float32Array.from(probs, (_, key) => values[key * width + dimension]);
  const name = (/** @type {number} */ key) => `${tokenName(at.tokens, key)} (${key})`;
  const way = (/** @type {number} */ key) => ({ number: "", key });
  const says = ["The values of all tokens, each times the weight with which this token looks there.", sharing(at.example, at.place.head)].filter(Boolean).join(" ");
  return [sumStep("mixture", "Weigh the values", says, products(probs, own, name, way), ["weight", "value"])];
}

/** @param {Teller} at */
export async function headOut(at) {
  const { head, dimension } = at.place;
  const [own, row] = await Promise.all([at.headRow("z"), at.weight("attention.output.weight", dimension)]);
  const w = row.subarray(head * own.length, (head + 1) * own.length);
  const says = `W_O turns the ${own.length} numbers of a head into ${at.source.shape.dModel}, as many as the stream has.`;
  return [sumStep("products", "Multiply and add up", says, products(own, w, dimensionName, to("z")), ["z", "W_O"])];
}

/** @param {Teller} at */
export async function attnOut(at) {
  const { dimension } = at.place;
  const { heads, dHead } = at.source.shape;
  const [row, bias, ...own] = await Promise.all([
    at.weight("attention.output.weight", dimension),
    at.bias("attention.output.bias", dimension),
    ...Array.from({ length: heads }, (_, head) => at.headRow("z", head)),
  ]);
  const parts = own.map((one, head) => total(Array.from(one, (value, i) => value * row[head * dHead + i])));
  const terms = parts.map((value, head) => ({ name: `head ${head}`, factors: [], value, to: { number: "head_out", heads: [head], dimension } }));
  const says = `z of the ${heads} heads stand one behind the other: ${heads} × ${dHead} = ${heads * dHead} numbers. They are multiplied with W_O as one vector; each head's part of that sum is what it adds.`;
  return linear(says, terms, [], bias, "Concatenate, and multiply with W_O");
}
