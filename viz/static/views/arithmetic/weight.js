/**
 * One attention weight told in steps: multiply, scale, mask, softmax, take the value along. No document here.
 *
 * @typedef {object} Story  all that is told
 * @property {Example} example
 * @property {Vectors} vectors
 * @property {Row} row
 * @property {number} key
 *
 * @import { Tokens } from "../../core/data/data.js"
 * @import { Example, Vectors } from "../../core/data/example.js"
 * @import { Row } from "../../core/data/softmax.js"
 * @import { Step } from "./steps.js"
 */

import { productApart } from "../../core/data/rotation.js";
import { ONE_WAY, reach, sharing } from "../../core/data/sharing.js";
import { farthest, sees, vectorOf } from "../../core/data/softmax.js";
import { counted } from "../../core/text/numbers.js";
import { tokenName } from "../../core/text/text.js";
import { translated } from "../../core/text/translated.js";
import { capStep, dimensionName, lineStep, products, sumStep } from "./steps.js";

/** Distances in tokens that are compared with the pair's own. */
const DISTANCES = [0, 1, 2, 4, 8, 16, 32];

/** A token in a sentence. @param {Tokens} tokens @param {number} index */
const quoted = (tokens, index) => `“${tokenName(tokens, index)}”`;

/** @param {Story} story @param {number} head @returns {Step[]} */
export function weightSteps(story, head) {
  const { example, vectors, row, key } = story;
  const [query, keyed] = [vectorOf(vectors.query, row.query, vectors.width), vectorOf(vectors.key, key, vectors.width)];
  const names = [quoted(example.tokens, row.query), quoted(example.keyTokens, key)];
  const says = `${names[0]} has a query q, ${names[1]} a key k: ${counted(vectors.width, "1 number", " numbers")} each. They are multiplied number by number, and the products added up. The larger the sum, the better the query fits the key. ${sharing(example, head)}`;
  const product = sumStep("multiply", "Multiply and add up", says.trim(), products(query, keyed, dimensionName), ["q", "k"]);
  return [product, ...turned(story, query, keyed, product.value), scaled(story, product.value), ...(vectors.softCap ? [capStep("score", row.scores[key], vectors.softCap)] : []), masked(story), weighed(story), handedOn(story, names)];
}

/**
 * What turning by position makes of the product: that of the same two tokens nearer or further apart; 0 apart, turning changes nothing.
 *
 * @param {Story} story
 * @param {Float32Array} query
 * @param {Float32Array} keyed
 * @param {number} sum
 * @returns {Step[]}
 */
function turned({ vectors: { rotary, width }, row, key }, query, keyed, sum) {
  if (!rotary) return [];
  const own = row.query - key;
  const sign = own < 0 ? -1 : 1;
  const apart = [...new Set([...DISTANCES, Math.abs(own)])].sort((a, b) => a - b);
  const lines = apart.map((distance) => [`${distance} apart${distance === Math.abs(own) ? ", as here" : ""}: _q_ · _k_ = `, productApart(query, keyed, rotary, { at: row.query, keyAt: key, apart: sign * distance })]);
  const turnedSide = 2 * rotary.frequencies.length;
  const how = turnedSide < width ? `The first ${turnedSide} of ${width} numbers of query and key` : "Query and key";
  const far = counted(Math.abs(own), "1 token", " tokens");
  const place = own ? (own > 0 ? `${far} behind` : `${far} ahead`) : "where the query stands";
  const says = `${how} are shown after rotation: two and two were turned by position × frequency. The same pair of tokens at another distance gives another product; here the key stands ${place}.`;
  return [lineStep("turn", "Turned by position", says, lines, sum)];
}

/** @param {Story} story @param {number} sum */
function scaled({ vectors: { scale, width }, row, key }, sum) {
  const usual = Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
  const why = usual ? `A sum of ${counted(width, "1 product", " products")} grows with the root of their number; dividing by √${width} undoes that.` : "This layer has a scale of its own.";
  return lineStep("scale", "Scale", why, [[usual ? `_score_ = _q_ · _k_ / √${width} = ` : "_score_ = _q_ · _k_ × scale = ", sum, " × ", scale, " = ", row.scores[key]]], row.scores[key]);
}

/** @param {Story} story */
function masked({ example, row, key, vectors }) {
  const window = reach(vectors.window, example.causal);
  const seen = sees(row, key);
  const score = seen ? row.capped[key] : -Infinity;
  if (!example.causal && !window) return lineStep("mask", "Mask", "No key is masked: this model reads in both directions.", [], score);
  const count = row.end - row.first;
  const hidden = vectors.nKeys - count;
  const one = example.causal ? ONE_WAY : "";
  const ways = [one, window, `${counted(count, "1 key", " keys")} may be looked at, ${hidden === 1 ? "1 is masked" : `${hidden} are masked`}.`, verdict(example, row, key, seen)];
  const line = seen ? ["_score_ = ", score] : ["_score_ = ", score, " instead of ", row.capped[key]];
  return lineStep("mask", "Mask", ways.filter(Boolean).join(" "), [line], score);
}

/** Why the key is masked, or is not. @param {Example} example @param {Row} row @param {number} key @param {boolean} seen */
function verdict({ tokens, keyTokens, causal }, row, key, seen) {
  const name = quoted(keyTokens, key);
  if (row.query === key) return `${name} is the token itself: not masked.`;
  const query = quoted(tokens, row.query);
  const side = key < row.query ? `${name} comes before ${query}` : `${name} comes after ${query}`;
  if (seen) return `${side}: not masked.`;
  return `${side}${key < row.query || !causal ? ", outside the window" : ""}: masked, whatever its score.`;
}

/** The exponentials of all keys, and the share of this one. @param {Story} story @returns {Step} */
function weighed({ example, row, key }) {
  const seen = Array.from(row.exps.keys()).filter((i) => sees(row, i));
  const says = "Every score becomes positive by the exponential, and its share of their sum is the weight. The largest score of the row is subtracted first; it cancels out. The sum is over all keys that are not masked:";
  const terms = seen.map((i) => ({ name: `${tokenName(example.keyTokens, i)} (${i})`, factors: [row.capped[i], row.capped[i] - row.capped[row.strongest]], value: row.exps[i], to: { query: row.query, key: i } }));
  const score = sees(row, key) ? row.capped[key] : -Infinity;
  return {
    ...sumStep("softmax", "Softmax", says, terms, ["score", "score − largest"]),
    lines: [
      ["exp(_score_ − largest) = exp(", score, " − ", row.capped[row.strongest], ") = ", row.exps[key]],
      ["_weight_ = ", row.exps[key], " / ", row.denominator, " = ", row.weights[key]],
    ],
    value: row.weights[key],
  };
}

/** What the keys hand on to the token that looks. @param {Story} story @param {string[]} names @returns {Step} */
function handedOn({ example, vectors, row, key }, names) {
  if (!vectors.value || !sees(row, key)) {
    const why = sees(row, key) ? "This page was made without values." : "Here it is 0: nothing is taken along.";
    return lineStep("value", "Take the value along", `The weight then multiplies the value of the key. ${why}`, [], NaN);
  }
  const { value: values, width } = vectors;
  const dimension = farthest(vectorOf(values, key, width));
  const terms = Array.from(row.weights, (weight, i) => ({ name: `${tokenName(example.keyTokens, i)} (${i})`, factors: [weight, values[i * width + dimension]], value: weight * values[i * width + dimension] }));
  const says = `${names[1]} has a value v too, of ${counted(width, "1 number", " numbers")}. Of it, ${names[0]} gets this share; with those of all other keys it adds up to z, what the head hands on. In dimension ${dimension}, where the value of ${names[1]} is farthest from zero:`;
  return sumStep("value", "Take the value along", says, terms, [translated`weight`, "v"]);
}
