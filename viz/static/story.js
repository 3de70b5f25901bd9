/** The script of the story: both of its models in the page, each in a worker when it is first asked for. */

import { handOver } from "./core/hand_over.js";
import { pageAddress } from "./core/state/state.js";
import { engineInFile, workerOf } from "./engine/in_file.js";
import { markPainted, nameWindow, textOfBlock, unpacked } from "./live/show_page.js";
import { CHAPTERS } from "./live/story/steps.js";
import { Story } from "./live/story/story.js";

/** @param {any} held  what the header says of a model @param {string} block  its weights */
async function engineOf(held, block) {
  await textOfBlock("worker");
  const worker = workerOf(await unpacked("worker").text());
  await textOfBlock(block);
  return engineInFile(worker, { ...held, weights: await unpacked(block).arrayBuffer() });
}

handOver({
  kinds: [],
  async showPage(page, kinds) {
    const { story: held } = await unpacked("header").json();
    const engines = { "tiny-bert": () => engineOf(held[0], "weights0"), "tiny-gpt2": () => engineOf(held[1], "weights1") };
    nameWindow("How a transformer chooses a word");
    const story = new Story(page, CHAPTERS, { kinds, address: pageAddress(), engines });
    await story.follow();
    await markPainted(page);
    // So that it is there when its chapter is.
    await story.picture.open("tiny-gpt2");
  },
});
