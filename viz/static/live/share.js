/** What can be taken away: the address, the Python that gives the same, the page without the model. */

import { button } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { copy, save } from "../core/export/export.js";

/**
 * @param {{address: () => string, file: (() => Promise<string>) | null}} give  file: the HTML of the page as
 *   it is; null where there is none
 */
export function createShare({ address, file }) {
  const said = element("span", { class: "live-hint", role: "status" });
  const code = element("pre", { class: "live-python", tabindex: "0", "aria-label": "Python that gives the same numbers" });
  const does = (/** @type {() => Promise<string>} */ act) => async () => {
    said.textContent = "";
    said.textContent = await act().catch((error) => `That did not work: ${error.message}`);
  };
  const copying = (/** @type {() => string} */ text, /** @type {string} */ what) => does(async () => {
    await copy(root, text());
    return `${what} copied`;
  });
  const acts = [
    button("Copy the Python", copying(() => code.textContent ?? "", "Python"), { class: "live-act" }),
    button("Copy the address", copying(address, "Address"), { class: "live-act", title: "It has the texts, the changes and what is chosen" }),
    ...(file ? [button("Save without the model", does(async () => save(root, "attention.html", new Blob([await file()], { type: "text/html" }))), {
      class: "live-act",
      title: "One file with these numbers, that opens without a network",
    })] : []),
  ];
  /** @type {HTMLElement} */
  const root = element("div", { class: "live-panel live-share" }, [element("div", { class: "live-acts" }, [...acts, said]), code]);
  return {
    root,
    /** @param {string} python */
    update(python) {
      if (code.textContent !== python) code.textContent = python;
    },
  };
}
