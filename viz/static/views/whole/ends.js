/** The boxes before the first layer and behind the last. */

import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/sign_colors.js";
import { counted } from "../../core/text/numbers.js";
import { percent, running, visible } from "../../core/text/text.js";
import { track } from "../../marks/bars.js";
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
  const sum = `${names.join(" + ")}${built.embedNorm ? ", then LayerNorm" : ""}`;
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
      says: `Each token becomes ${shape.dModel} numbers, looked up in tables that were learned: ${sum}.`,
      rows: [
        ...embeddings.map(({ name, numbers }) => ({ name, parts: [numbers], scale })),
        { name: built.embedNorm ? "normed" : "sum", parts: [embed], scale: scaleFor(embed) },
      ],
      fact: `length ${normOf(embed).toFixed(1)}`,
      way: { view: "arithmetic", number: "embed", dimension: null },
      leads: "Arithmetic",
    },
  ];
}

/**
 * What stands behind the last layer: the last LayerNorm of a pre-norm model, the output head, the softmax.
 *
 * @param {Whole} whole
 * @returns {Box[]}
 */
export function outputBoxes({ built, shape, candidates, example }) {
  if (!candidates.length) return [];
  const first = built.transform ? "a matrix, an activation and LayerNorm of its own" : "the last LayerNorm";
  const [best] = candidates;
  const asks = shape.predicts === "masked" ? "which token stands here" : "which token comes next";
  return [
    {
      id: "head",
      title: built.transform ? "Output head" : "Last LayerNorm",
      name: "",
      says: `Makes the stream ready to be compared with the vocabulary: ${first}.`,
      rows: [],
      kind: built.transform ? "box" : "norm",
      way: { view: "arithmetic", number: "head_hidden", dimension: null },
      leads: "Arithmetic",
    },
    {
      id: "logits",
      title: "Prediction",
      name: "logits",
      says: `One logit for each of ${counted(shape.vocabulary, "token")}; the softmax makes probabilities of them: ${asks}${example.causal ? "" : ", as the model sees it"}.`,
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
