/** The script of a page that runs a model: the engine that the page holds, in a worker. */

import { blocksOfText } from "./core/data/packed.js";
import { engineInFile, workerOf } from "./engine/in_file.js";
import { showLive } from "./live/live.js";
import { textOfBlock, unpacked } from "./live/show_page.js";

showLive(async (held) => {
  await textOfBlock("worker");
  const worker = workerOf(await unpacked("worker").text());
  const { buffer } = await blocksOfText(textOfBlock).bytes("weights");
  return engineInFile(worker, { ...held, weights: buffer });
});
