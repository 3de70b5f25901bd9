/**
 * The engine of a live page outside of a browser: viz/built/worker.js runs as a worker would, and in_file.js asks it; or
 * that of a served page, which served.js asks. Calls come in as lines of JSON; an answer is a line of JSON, and behind
 * that of a trace the numbers that it names.
 */

import { openAsBlob, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import vm from "node:vm";

import { pairsOf } from "../../viz/static/core/data/why.js";
import { configOf } from "../../viz/static/engine/folder.js";
import { engineInFile } from "../../viz/static/engine/in_file.js";
import { engineAddress, ServedEngine } from "../../viz/static/engine/served.js";
import { Runs } from "../../viz/static/live/runs.js";
import { Lab } from "../../viz/static/live/story/lab.js";
import { CHAPTERS } from "../../viz/static/live/story/steps.js";
import { Teller, vectorAt, WORKED, workedIn } from "../../viz/static/views/arithmetic/worked.js";
import { inputBoxes, readWhole } from "../../viz/static/views/whole/boxes.js";
import { layerParts } from "../../viz/static/views/whole/whole.js";

/** A worker in this process: messages are copied, as they are between threads. It may be one without WebAssembly. */
function workerHere(script, { WebAssembly } = globalThis) {
  const page = { onmessage: null, terminate() {} };
  const self = { onmessage: null };
  self.postMessage = (data, transfer) => page.onmessage({ data: structuredClone(data, { transfer }) });
  // Node copies no Blob of a file.
  page.postMessage = (data, transfer) => self.onmessage({ data: data.held?.files ? data : structuredClone(data, { transfer }) });
  vm.runInThisContext(`(function (self, WebAssembly) {${script}\n})`)(self, WebAssembly);
  return page;
}

const script = readFileSync(new URL("../../viz/built/worker.js", import.meta.url), "utf8");
let engine = null;

const DO = {
  open({ live, weights }) {
    const { buffer } = Uint8Array.from(Buffer.from(weights, "base64"));
    engine = engineInFile(workerHere(script), { ...live, weights: buffer });
    return engine.about();
  },
  /** A folder that is dropped on a page. */
  async folder({ path, tables, slow }) {
    const files = new Map();
    for (const name of readdirSync(path)) files.set(name, await openAsBlob(join(path, name)));
    engine = engineInFile(workerHere(script, slow ? {} : globalThis), { files, name: "dropped", tables });
    return engine.about();
  },
  /** What each config.json is to the engine: a config, or why it is refused. */
  configs({ raws, tables }) {
    const configs = raws.map((raw) => {
      try {
        return { config: configOf(raw, tables, "dropped").config };
      } catch (error) {
        return { error: error.message };
      }
    });
    return { configs };
  },
  /** A server takes a page of its own origin alone. */
  connect({ address }) {
    const { origin } = new URL(address);
    engine = new ServedEngine(engineAddress(address), (to) => new WebSocket(to, { headers: { origin } }));
    return engine.about();
  },
  /** The run, and the quantities that are asked for. */
  async trace({ request, read, bytes }) {
    const { number, header, predictions, blocks } = await engine.trace(request);
    const numbers = [];
    for (const [quantity, layer] of read) numbers.push(await engine.read(number, quantity, layer));
    const packed = [];
    for (const name of bytes) packed.push(await blocks.bytes(name));
    const parts = [...numbers.map(({ values }) => values), ...packed];
    return { answer: { header, predictions, shapes: numbers.map(({ shape }) => shape), lengths: packed.map((one) => one.length) }, parts };
  },
  /** Numbers worked out as the arithmetic view does, beside those of the engine; and the quantities that it offers. */
  async worked({ request, places }) {
    const example = await exampleOf(request);
    const answers = [];
    for (const { quantity, ...place } of places) {
      answers.push(await toldAt(example, WORKED.find(({ id }) => id === quantity), place));
    }
    return { answers, offered: workedIn(await engine.about()).map(({ id }) => id) };
  },
  /** The pairs of parts of a score, and what is behind both sides of the largest. */
  async why({ request, asked, features = false }) {
    const example = await exampleOf(request);
    const vectors = await example.vectors(asked.layer, asked.head);
    const pairs = await pairsOf({ source: example.source, tokens: example.tokens, vectors, asked, features });
    const followed = async (open) => {
      if (!open) return null;
      const parts = await open();
      const largest = parts.slice(0, 2).map(async ({ label, token, score, open: next }) => [token ?? label, score, await followed(next)]);
      return { sum: parts.reduce((sum, { score }) => sum + score, 0), largest: await Promise.all(largest) };
    };
    const read = pairs.slice(0, 3).map(({ query, key }) => Promise.all([query, key].map(({ open }) => followed(open))));
    const same = pairs.filter((pair) => pair.same).map(({ key }) => key.label);
    return { pairs: pairs.map(({ query, key, score }) => [query.label, key.label, score]), same: [...new Set(same)], read: await Promise.all(read) };
  },
  /** The boxes of the picture of the whole before the last layer's end, with the numbers that they draw. */
  async whole({ request, place }) {
    const example = await exampleOf(request);
    const whole = await readWhole(example.source, example, place);
    const parts = layerParts(whole).map(({ boxes }) => ({ boxes: boxes.map(drawn) }));
    return { input: inputBoxes(whole).map(drawn), open: parts };
  },
  /** What the steps of a chapter of the story reveal; each asks its question first. */
  async chapter({ number }) {
    const { model, steps } = CHAPTERS[number - 1];
    const lab = new Lab(engine, await engine.about());
    const revealed = [];
    for (const { ask, reveal } of steps) revealed.push({ asked: typeof ask === "string" ? ask : await ask(lab), ...(await reveal(lab)) });
    return { model, revealed };
  },
  candidates: async ({ request, position }) => ({ found: await engine.candidates((await engine.trace(request)).number, position) }),
  sweep: ({ request, question }) => engine.sweep(request, question).then(({ shape, values }) => ({ shape, values: [...values] })),
  step: ({ request, sampling }) => engine.step(request, sampling),
  weights: ({ quantity, layer, row }) => engine.weights(quantity, layer, row).then((found) => found && { ...found, values: [...found.values] }),
};

/** The run of a request as views have it. */
async function exampleOf(request) {
  const runs = new Runs(engine, await engine.about());
  return (await runs.of(request)).example;
}

async function toldAt(example, quantity, place) {
  const at = new Teller(example.source, example, place);
  const steps = await quantity.tell(at);
  const { value } = steps[steps.length - 1];
  const vector = quantity.of === "vocabulary" ? await at.row("logits", null) : await vectorAt(quantity, at);
  const terms = steps.flatMap(({ sum }) => (sum ? sum.terms : []));
  return { value, given: vector[place.dimension], largest: Math.max(...terms.map((term) => Math.abs(term.value)), 0), steps };
}

function drawn({ id, title, rows, fact, says }) {
  return { id, title, fact, says, rows: rows.map(({ name, parts, groups }) => ({ name, groups, parts: parts.map((one) => Array.from(one)) })) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...given } = JSON.parse(line);
  try {
    const made = await DO[call](given);
    const { answer, parts } = made?.parts ? made : { answer: made, parts: [] };
    process.stdout.write(`${JSON.stringify({ answer })}\n`);
    for (const part of parts) process.stdout.write(Buffer.from(part.buffer, part.byteOffset, part.byteLength));
  } catch (error) {
    process.stdout.write(`${JSON.stringify({ error: `${error.name}: ${error.message}` })}\n`);
  }
}
engine?.close();
