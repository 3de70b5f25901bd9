/** The boxes before the first layer and behind the last. */

import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/sign_colors.js";
import { normName } from "../../core/data/wiring.js";
import { counted, written } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";
import { track } from "../../marks/bars.js";
import { cells, lengthOf, normBox } from "./boxes.js";

/**
 * @typedef {import("./box.js").Box} Box
 * @typedef {import("./box.js").Cells} Cells
 * @typedef {import("./read.js").Whole} Whole
 */

/** Tokens of the prediction that are listed. */
const LISTED = 5;

/**
 * Text, and embeddings, with the projection that may follow them; the tokens stand between them.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function inputBoxes(whole) {
  const { example, embedding, embed, built, shape } = whole;
  const text = visible(example.header.texts.map(running).join(" / "), 240);
  const projected = `A matrix makes ${shape.dModel} numbers of these ${embedding.values.length}: as many as the stream has.`;
  return [
    { id: "text", title: "Text", name: "", says: text, rows: [], way: { view: "text" }, leads: "Text" },
    tablesBox(whole, built.embedProject ? embedding.values : embed),
    ...(built.embedProject ? [embedBox("embed", "Projection", projected, [cells("", embed)], embed)] : []),
  ];
}

/**
 * @param {Whole} whole
 * @param {Float32Array} made  of the rows of the tables
 */
function tablesBox({ embedding: { rows }, built }, made) {
  const scale = scaleFor(...rows.map(({ numbers }) => numbers));
  const scaled = built.embedScale === 1 ? "" : `, times ${written(built.embedScale)}`;
  const sum = `${rows.map(({ name, row }) => `${name} (row ${row})`).join(" + ")}${scaled}${built.embedNorm ? `, then ${normName(built)}` : ""}`;
  const tables = rows.length > 1 ? "tables that were" : "a table that was";
  const last = built.embedNorm ? "normed" : rows.length > 1 ? "sum" : "scaled";
  const same = last === "scaled" && !scaled;
  const says = `Each token becomes ${made.length} numbers, looked up in ${tables} learned: ${sum}.`;
  const drawn = [...rows.map(({ name, numbers }) => ({ name, parts: [numbers], scale })), ...(same ? [] : [cells(last, made)])];
  return embedBox(built.embedProject ? "embed_input" : "embed", "Embedding", says, drawn, made);
}

/**
 * @param {string} number
 * @param {string} title
 * @param {string} says
 * @param {Cells[]} rows
 * @param {Float32Array} numbers  that it leaves
 * @returns {Box}
 */
function embedBox(number, title, says, rows, numbers) {
  const name = number === "embed" ? number : "";
  return { id: number, title, name, says, rows, fact: lengthOf(numbers), way: { view: "arithmetic", number, dimension: null }, leads: "Arithmetic" };
}

/**
 * What stands behind the last layer: the last norm of a pre-norm model, the output head, the softmax.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function outputBoxes({ built, shape, candidates, example }) {
  if (!candidates.length) return [];
  const name = normName(built);
  const [best] = candidates;
  const asks = shape.predicts === "masked" ? "which token stands here" : "which token comes next";
  const capped = built.logitSoftCap ? `, squeezed into −${written(built.logitSoftCap, 0)} to ${written(built.logitSoftCap, 0)}` : "";
  return [
    ...(built.finalNorm && built.transform ? [normBox("hidden", `Last ${name}`, "What the output head reads: the stream, normed a last time.")] : []),
    {
      ...normBox("head_hidden", built.transform ? "Output head" : `Last ${name}`, `Makes the stream ready to be compared with the vocabulary: ${built.transform ? `a matrix, an activation and ${name} of its own` : `the last ${name}`}.`),
      id: "head",
      kind: built.transform ? "box" : "norm",
    },
    {
      id: "logits",
      title: "Prediction",
      name: "logits",
      says: `One logit for each of ${counted(shape.vocabulary, "token")}${capped}; the softmax makes probabilities of them: ${asks}${example.causal ? "" : ", as the model sees it"}.`,
      rows: [],
      more: [predictionBars(candidates)],
      way: { view: "arithmetic", number: "logits", dimension: best.id },
      leads: "Arithmetic",
    },
  ];
}

/** @param {import("../../core/data/source.js").Candidate[]} candidates */
function predictionBars(candidates) {
  const bars = candidates.slice(0, LISTED).map(({ text, prob }) =>
    element("span", { class: "whole-bar" }, [
      element("bdi", {}, [visible(text.trim(), 18)]),
      track(prob, ""),
      element("data", { value: String(prob) }, [percent(prob)]),
    ]),
  );
  return element("span", { class: "whole-bars" }, bars);
}
