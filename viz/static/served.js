/** A page before a model behind a server: a field to type in, above the views. */

import { fromBase85, inflate } from "./core/data/packed.js";
import { element } from "./core/draw/dom.js";
import { mount } from "./core/frame/frame.js";
import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/address.js";
import { ServedEngine, engineAddress } from "./engine/served.js";

/**
 * @param {HTMLElement} page
 * @param {import("./core/frame/kinds.js").Kind[]} kinds
 */
async function showServed(page, kinds) {
  const packed = document.getElementById("header")?.textContent ?? "";
  const { live, ...header } = await inflate(fromBase85(packed)).json();
  const engine = new ServedEngine(engineAddress(location.href));
  const field = element("input", { type: "text", "aria-label": "Text", value: live.texts[0] });
  const says = element("p", { role: "status" });
  const views = element("div");
  page.append(field, says, views);
  const show = async () => {
    const { header: example, blocks, predictions } = await engine.trace({ texts: [field.value], edits: [] });
    says.textContent = predictions
      .map(({ candidates }) => candidates.slice(0, 5).map(({ text, prob }) => `${text} ${(100 * prob).toFixed(1)} %`).join(", "))
      .join("; ");
    views.replaceChildren();
    const named = (/** @type {string} */ title) => void (document.title = title);
    mount(views, { ...header, examples: [example] }, blocks, { kinds, address: pageAddress(), keys: document, named });
  };
  const failed = (/** @type {Error} */ error) => {
    if (error.name !== "AbortError") says.textContent = error.message;
  };
  field.addEventListener("input", () => show().catch(failed));
  await show().catch(failed);
}

handOver({ kinds: [], showPage: showServed });
