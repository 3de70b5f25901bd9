/** One layer of the diagram: closed, a strip of what it leaves; open, its parts as they are wired. */

import { element } from "../../core/draw/dom.js";
import { scaleFor } from "../../core/draw/sign_colors.js";
import { paintCells } from "./box.js";
import { BOXES, TITLES } from "./boxes.js";

/**
 * @typedef {import("./box.js").Box} Box
 * @typedef {import("./read.js").Whole} Whole
 *
 * @typedef {object} Part  of an open layer, in the order of the data
 * @property {"stream" | "branch"} kind
 * @property {string} title
 * @property {Box[]} boxes
 */

/**
 * The bar of a layer, which opens it.
 *
 * @param {Whole} whole
 * @param {number} layer
 * @param {boolean} open
 * @param {() => "light" | "dark"} theme
 * @param {(change: import("./box.js").Way) => void} set
 */
export function layerHead(whole, layer, open, theme, set) {
  const after = /** @type {Float32Array} */ (whole.after.get(layer));
  const scale = streamScale(whole);
  const canvas = element("canvas", { "aria-hidden": "true" });
  const cells = element("span", { class: "whole-cells" }, [canvas]);
  const inside = whole.built.parallel ? "attention beside the MLP: both read the stream and add to it" : "attention, then the MLP; each adds to the stream";
  const attributes = { type: "button", class: "whole-layer-head", "aria-expanded": String(open), "data-box": `layer ${layer}` };
  const opener = element("button", attributes, [
    element("span", { class: "whole-title" }, [`Layer ${layer}`]),
    element("span", { class: "whole-says" }, [open ? inside : "what it leaves in the stream"]),
    ...(open ? [] : [cells]),
  ]);
  opener.addEventListener("click", () => set({ layer }));
  const heads = element("button", { type: "button", class: "whole-all", "data-box": `model ${layer}` }, ["All heads →"]);
  heads.addEventListener("click", () => set({ view: "model", layer }));
  const root = element("div", { class: open ? "whole-bar-of open" : "whole-bar-of" }, open ? [opener, heads] : [opener]);
  return { root, paint: () => !open && paintCells(canvas, [{ name: "", parts: [after], scale }], theme()) };
}

/** One scale for the stream in all layers, so that it can be seen to grow. @param {Whole} whole */
function streamScale({ embed, after }) {
  return scaleFor(embed, ...after.values());
}

/**
 * The parts of the open layer, in the order of its steps: what belongs together stands in one part. A
 * norm that stands before or behind a branch is a box of it; one of a sum stands in the stream.
 *
 * @param {Whole} whole
 * @returns {Part[]}
 */
export function layerParts(whole) {
  /** @type {Part[]} */
  const parts = [];
  let of = "";
  for (const step of whole.steps) {
    const boxes = (BOXES[step.id] ?? (() => []))(whole, step);
    if (step.part === "stream" || step.part !== of) parts.push({ kind: step.part === "stream" ? "stream" : "branch", title: TITLES[step.part], boxes: [] });
    of = step.part;
    parts[parts.length - 1].boxes.push(...boxes);
  }
  return parts;
}
