/** The script of the report of a survey; its pictures of texts are pages of their own. */

import { fromBase85, inflate } from "./core/data/packed.js";
import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/state.js";
import { mountReport } from "./views/survey/report.js";

/** @param {HTMLElement} page */
async function showPage(page) {
  const text = document.getElementById("header")?.textContent ?? "";
  const header = await inflate(fromBase85(text)).json();
  document.title = `What the heads of ${header.title} do`;
  mountReport(page, header, pageAddress());
}

handOver({ kinds: [], showPage });
