/** The script of a page that runs a model, which the page holds or is given as a folder: the engine in a worker. */

import { fromBase64 } from "./core/data/packed.js";
import { engineInFile, workerOf } from "./engine/in_file.js";
import { askForFolder } from "./live/drop.js";
import { showLive } from "./live/live.js";
import { textOfBlock, unpacked } from "./live/show_page.js";

showLive(async (held, page) => {
  await textOfBlock("worker");
  const script = await unpacked("worker").text();
  if (held.tables) return askForFolder(page, held.tables, () => workerOf(script));
  const worker = workerOf(script);
  const { buffer } = fromBase64(await textOfBlock("weights"));
  return engineInFile(worker, { ...held, weights: buffer });
});
