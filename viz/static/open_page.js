/**
 * The script that stands in the file as it is: it unpacks the page's style and script, puts them in
 * place and shows the page. Their hashes are in the Content-Security-Policy.
 */

import { fromBase85, inflate } from "./core/data/packed.js";
import { run } from "./core/hand_over.js";

const page = /** @type {HTMLElement} */ (document.getElementById("page"));

async function open() {
  const packed = document.getElementById("code")?.textContent ?? "";
  const [style, code] = (await inflate(fromBase85(packed)).text()).split("\0");
  const { kinds, showPage } = run(code);
  const made = document.createElement("style");
  made.textContent = style;
  document.head.append(made);
  await showPage(page, kinds);
}

open().catch((error) => {
  page.textContent = `This page could not be unpacked: ${error.message}. It needs a browser of 2023 or later.`;
});
