/**
 * * * * * * * The script of a page that runs a model: its engine, and what stands above the views.
 *
 * @import { Kind } from "./core/frame/kinds.js"
 */

import { blocksOfText } from "./core/data/packed.js";
import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/state.js";
import { engineInFile, workerOf } from "./engine/in_file.js";
import { openLive } from "./live/live.js";
import { withNumbers } from "./live/wider.js";
import { markPainted, nameWindow, shell, showPage, textOfBlock, unpacked } from "./show_page.js";
import { jointKind } from "./views/joint/joint.js";
import { wholeKind } from "./views/whole/whole.js";

/** The engine that the page holds. @param {any} held  what the header says of its model */
async function engineOf(held) {
  await textOfBlock("worker");
  const worker = workerOf(await unpacked("worker").text());
  const { buffer } = await blocksOfText(textOfBlock).bytes("weights");
  return engineInFile(worker, { ...held, weights: buffer });
}

/** @param {HTMLElement} page @param {Kind[]} kinds */
async function show(page, kinds) {
  const { live } = await unpacked("header").json();
  // What was saved without its model is a page as others.
  if (!live) return showPage(page, kinds);
  const engine = await engineOf(live);
  await openLive(page, engine, {
    kinds: withNumbers(kinds), address: pageAddress(), keys: document, named: nameWindow, texts: live.texts, samples: live.samples, shell: shell(),
  });
  return markPainted(page);
}

handOver({ kinds: [wholeKind, jointKind], showPage: show });
