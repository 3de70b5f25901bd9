/** A page that runs a model: a field to type in, above the views of what the model makes of it. */

import { blocksOfText } from "./core/data/base64.js";
import { fromBase85, inflate } from "./core/data/packed.js";
import { element } from "./core/draw/dom.js";
import { mount } from "./core/frame/frame.js";
import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/address.js";
import { engineInFile, workerOf } from "./engine/in_file.js";

/** @param {string} id */
function textOf(id) {
  return document.getElementById(id)?.textContent ?? "";
}

/** @param {string} id */
async function unpacked(id) {
  return inflate(fromBase85(textOf(id)));
}

/**
 * @param {HTMLElement} page
 * @param {import("./core/frame/kinds.js").Kind[]} kinds
 */
async function showLive(page, kinds) {
  const { live, ...header } = await (await unpacked("header")).json();
  while (document.readyState === "loading") await new Promise((resolve) => setTimeout(resolve, 8));
  const worker = workerOf(await (await unpacked("worker")).text());
  const { buffer } = await blocksOfText(async () => textOf("weights")).bytes("weights");
  const engine = engineInFile(worker, { ...live, weights: buffer });
  const field = element("input", { type: "text", "aria-label": "Text", value: live.texts[0] });
  const views = element("div");
  page.append(field, views);
  const show = async () => {
    const run = await engine.trace({ texts: [field.value], edits: [] });
    views.replaceChildren();
    const named = (/** @type {string} */ title) => void (document.title = title);
    mount(views, { ...header, examples: [run.header] }, run.blocks, { kinds, address: pageAddress(), keys: document, named });
  };
  field.addEventListener("input", () => show().catch(() => {}));
  await show();
}

handOver({ kinds: [], showPage: showLive });
