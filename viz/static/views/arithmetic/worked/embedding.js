/**
 * The embedding worked out: rows of tables added up, their norm, and a projection where there is one.
 *
 * @typedef {import("./steps.js").Step} Step
 * @typedef {import("./teller.js").Teller} Teller
 */

import { embeddingOf } from "../../../core/data/embedding.js";
import { tokenName } from "../../../core/text/text.js";
import { normSteps } from "./norms.js";
import { sumStep } from "./steps.js";
import { dimensionName, linear, products, to } from "./teller.js";

/** What layer 0 reads, or the projection before it, whole. @param {Teller} at */
export async function summedVector(at) {
  return (await embeddingOf(at.source, at.tokens, at.place.position)).values;
}

/** The same in one dimension. @param {Teller} at @returns {Promise<Step[]>} */
export async function summed(at) {
  const { position, dimension } = at.place;
  const { rows, sum: x, norm } = await embeddingOf(at.source, at.tokens, position);
  const scaled = at.built.embedScale !== 1;
  // The row comes first: on a narrow page the end is cut off.
  const whose = {
    word: `words: ${tokenName(at.tokens, position)}`,
    position: `positions: position ${position}`,
    segment: `segments: text ${at.tokens.segment[position] ? "B" : "A"}`,
  };
  const terms = rows.map(({ name, row, scale, numbers }) => ({
    name: `row ${row} of ${whose[name]}`,
    factors: scaled ? [numbers[dimension], scale] : [],
    value: numbers[dimension] * scale,
  }));
  const one = "A row of a table that was learned, one for each token of the vocabulary. It says nothing of where the token stands.";
  const several = "Each is a row of a table that was learned: one for the word, one for the place where it stands, where there are two texts one for the text.";
  const [title, says] = rows.length > 1 ? ["Look up and add", several] : ["Look up", one];
  const sum = sumStep("embeddings", title, scaled ? `${says} This model multiplies the rows of its words.` : says, terms, scaled ? ["row", "scale"] : []);
  return norm ? [sum, ...normSteps({ x, dimension, norm })] : [sum];
}

/** @param {Teller} at */
export async function embed(at) {
  if (!at.built.embedProject) return summed(at);
  const { dimension } = at.place;
  const [x, w, bias] = await Promise.all([summedVector(at), at.weight("body.embed_project.weight", dimension, null), at.bias("body.embed_project.bias", dimension, null)]);
  const says = `The rows of the tables have ${x.length} numbers, and the stream has ${at.source.shape.dModel}: a matrix makes each of these from all of those.`;
  return linear(says, products(x, w, dimensionName, to("embed_input")), ["x", "W"], bias, "Project");
}
