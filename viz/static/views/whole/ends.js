/** The boxes before the first layer and behind the last. */

import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/sign_colors.js";
import { normName } from "../../core/data/wiring.js";
import { counted, written } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";
import { track } from "../../marks/bars.js";
import { normBox } from "./boxes.js";
import { normOf } from "./read.js";

/**
 * @typedef {import("./box.js").Box} Box
 * @typedef {import("./read.js").Whole} Whole
 */

/** Tokens of the prediction that are listed. */
const LISTED = 5;

/**
 * Text, and embeddings; the tokens stand between them.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function inputBoxes({ example, embeddings, embed, built, shape }) {
  const scale = scaleFor(...embeddings.map(({ numbers }) => numbers));
  const names = embeddings.map(({ name }) => name);
  const scaled = built.embedScale === 1 ? "" : `, times ${written(built.embedScale)}`;
  const sum = `${names.join(" + ")}${scaled}${built.embedNorm ? `, then ${normName(built)}` : ""}`;
  const tables = names.length > 1 ? "tables that were" : "a table that was";
  const last = built.embedNorm ? "normed" : names.length > 1 ? "sum" : "scaled";
  const same = last === "scaled" && !scaled;
  return [
    {
      id: "text",
      title: "Text",
      name: "",
      says: visible(example.header.texts.map(running).join(" / "), 240),
      rows: [],
      way: { view: "text" },
      leads: "Text",
    },
    {
      id: "embed",
      title: "Embedding",
      name: "embed",
      says: `Each token becomes ${shape.dModel} numbers, looked up in ${tables} learned: ${sum}.`,
      rows: [
        ...embeddings.map(({ name, numbers }) => ({ name, parts: [numbers], scale })),
        ...(same ? [] : [{ name: last, parts: [embed], scale: scaleFor(embed) }]),
      ],
      fact: `length ${normOf(embed).toFixed(1)}`,
      way: { view: "arithmetic", number: "embed", dimension: null },
      leads: "Arithmetic",
    },
  ];
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
