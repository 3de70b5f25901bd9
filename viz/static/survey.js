/** The script of the report of a survey; its pictures of texts are pages of their own. */

import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/state.js";
import { unpacked } from "./live/show_page.js";
import { mountReport } from "./views/survey/report.js";

/** @param {HTMLElement} page */
async function showPage(page) {
  const header = await unpacked("header").json();
  document.title = `What the heads of ${header.title} do`;
  mountReport(page, header, pageAddress());
}

handOver({ kinds: [], showPage });
