/**
 * A place to drop the folder of a model on, or to choose one; what cannot be run is said in a sentence, and the next may
 * come.
 *
 * @import { Engine } from "../engine/engine.js"
 * @import { Files, Tables } from "../engine/folder.js"
 */

import { button } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { engineInFile } from "../engine/in_file.js";

/** @typedef {{name: string, files: Files}} Folder */

/** Only what lies in the folder itself counts. @param {FileList} list @returns {Folder} */
function chosen(list) {
  const paths = [...list].map((file) => ({ file, path: file.webkitRelativePath.split("/") }));
  const top = paths.filter(({ path }) => path.length <= 2);
  return { name: paths[0]?.path[0] || "model", files: new Map(top.map(({ file }) => [file.name, file])) };
}

/** What was dropped: a folder, or its files. @param {DataTransfer} dropped @returns {Promise<Folder>} */
async function droppedFolder(dropped) {
  const files = new Map([...dropped.files].map((file) => [file.name, file]));
  // All of it is asked for before the event ends. Chromium reads no entries for a page that is a file, but handles.
  const [entry] = [...dropped.items].map((item) => item.webkitGetAsEntry()).filter((one) => one?.isDirectory);
  const handles = await Promise.all([...dropped.items].map((item) => /** @type {any} */ (item).getAsFileSystemHandle?.()));
  const handle = handles.find((one) => one?.kind === "directory");
  if (!handle) return entry ? { name: entry.name, files: await filesOf(/** @type {FileSystemDirectoryEntry} */ (entry)) } : { name: "model", files };
  files.clear();
  for await (const one of handle.values()) if (one.kind === "file") files.set(one.name, await one.getFile());
  return { name: handle.name, files };
}

/** @param {FileSystemDirectoryEntry} folder @returns {Promise<Files>} */
async function filesOf(folder) {
  /** @type {Files} */
  const files = new Map();
  const reader = folder.createReader();
  for (;;) {
    // A reader gives some at a time, and none at the end.
    const some = /** @type {FileSystemEntry[]} */ (await new Promise((resolve, reject) => reader.readEntries(resolve, reject)));
    if (!some.length) return files;
    for (const entry of some) {
      if (entry.isFile) files.set(entry.name, await new Promise((resolve, reject) => /** @type {FileSystemFileEntry} */ (entry).file(resolve, reject)));
    }
  }
}

/**
 * The engine of the first folder that can be run.
 *
 * @param {HTMLElement} page
 * @param {Tables} tables
 * @param {() => Worker} start
 * @returns {Promise<Engine>}
 */
export function askForFolder(page, tables, start) {
  const input = /** @type {HTMLInputElement} */ (element("input", { type: "file", hidden: "", webkitdirectory: "" }));
  const said = element("p", { class: "drop-said", role: "status" });
  const choose = button("Choose a folder", () => input.click(), { class: "live-act" });
  const families = [...new Set(Object.values(tables.families).map(({ family }) => family))];
  const place = element("section", { class: "drop" }, [
    element("h1", {}, ["Run your own model"]),
    element("p", {}, ["Drop a Hugging Face folder here: config.json, model.safetensors and tokenizer.json. It runs in this page; nothing leaves this machine."]),
    choose,
    input,
    said,
    element("p", { class: "note" }, [`Families: ${families.join(", ")}. Numbers: float32, float16, bfloat16. Tokenizers: WordPiece, Unigram, and BPE of bytes.`]),
  ]);
  page.classList.add("minibert");
  page.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  page.replaceChildren(place);
  return new Promise((resolve) => {
    let count = 0;
    const run = async (/** @type {Promise<Folder>} */ coming) => {
      const own = (count += 1);
      const say = (/** @type {string} */ text, error = false) => {
        if (own !== count) return;
        said.textContent = text;
        said.classList.toggle("error", error);
      };
      say("Reading …");
      const worker = start();
      try {
        const { name, files } = await coming;
        const engine = engineInFile(worker, { files, name, tables }, (share) => say(`Reading ${name}: ${Math.round(100 * share)} %`));
        await engine.about();
        if (own !== count) return void worker.terminate();
        stop();
        place.remove();
        resolve(engine);
      } catch (error) {
        worker.terminate();
        const why = error instanceof Error ? error.message : String(error);
        say(`This folder cannot be run: ${why.replace(/\.+$/, "")}.`, true);
      }
    };
    const over = (/** @type {DragEvent} */ event) => event.preventDefault();
    const drop = (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      if (event.dataTransfer) run(droppedFolder(event.dataTransfer));
    };
    input.addEventListener("change", () => {
      if (input.files?.length) run(Promise.resolve(chosen(input.files)));
      input.value = "";
    });
    const stop = () => {
      page.ownerDocument.removeEventListener("dragover", over);
      page.ownerDocument.removeEventListener("drop", drop);
    };
    page.ownerDocument.addEventListener("dragover", over);
    page.ownerDocument.addEventListener("drop", drop);
  });
}
