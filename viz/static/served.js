/**
 * * * * * * * The script of a page before a model behind a server: its engine asks the server.
 *
 * @import { Kind } from "./core/frame/kinds.js"
 */

import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/state.js";
import { ServedEngine, engineAddress } from "./engine/served.js";
import { openLive } from "./live/live.js";
import { withNumbers } from "./live/wider.js";
import { markPainted, nameWindow, shell, showPage, unpacked } from "./show_page.js";
import { jointKind } from "./views/joint/joint.js";
import { wholeKind } from "./views/whole/whole.js";

/** @param {HTMLElement} page @param {Kind[]} kinds */
async function show(page, kinds) {
  const { live } = await unpacked("header").json();
  // What was saved without its model is a page as others.
  if (!live) return showPage(page, kinds);
  const engine = new ServedEngine(engineAddress(location.href));
  await openLive(page, engine, {
    kinds: withNumbers(kinds), address: pageAddress(), keys: document, named: nameWindow, texts: live.texts, samples: live.samples, shell: shell(),
  });
  return markPainted(page);
}

handOver({ kinds: [wholeKind, jointKind], showPage: show });
