/**
 * The engine of a live page outside of a browser: viz/built/worker.js runs as a worker would, and
 * in_file.js asks it. Calls come in as lines of JSON; an answer is a line of JSON, and behind it the
 * numbers that it names.
 */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import vm from "node:vm";

import { engineInFile } from "../../viz/static/engine/in_file.js";

/** A worker in this process: messages are copied, as they are between threads. */
function workerHere(script) {
  const page = { onmessage: null, terminate() {} };
  const self = { onmessage: null };
  self.postMessage = (data, transfer) => page.onmessage({ data: structuredClone(data, { transfer }) });
  page.postMessage = (data, transfer) => self.onmessage({ data: structuredClone(data, { transfer }) });
  vm.runInThisContext(`(function (self) {${script}\n})`)(self);
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
  sweep: ({ request, question }) => engine.sweep(request, question),
  step: ({ request, sampling }) => engine.step(request, sampling),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...given } = JSON.parse(line);
  try {
    const made = await DO[call](given);
    const { answer, parts } = made.parts ? made : { answer: made, parts: [] };
    if (answer.values) answer.values = Array.from(answer.values);
    process.stdout.write(`${JSON.stringify({ answer })}\n`);
    for (const part of parts) process.stdout.write(Buffer.from(part.buffer, part.byteOffset, part.byteLength));
  } catch (error) {
    process.stdout.write(`${JSON.stringify({ error: `${error.name}: ${error.message}` })}\n`);
  }
}
