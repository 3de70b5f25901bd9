import assert from "node:assert/strict";
import { test } from "node:test";

import { ServedEngine, engineAddress } from "../../viz/static/engine/served.js";

/** A server that answers when told to. */
class FakeSocket {
  constructor(address) {
    Object.assign(this, { address, readyState: 0, sent: [] });
  }

  send(message) {
    this.sent.push(JSON.parse(message));
  }

  accept() {
    this.readyState = 1;
    this.onopen();
  }

  /** Breaks, or is closed by the server. */
  close(code = 1006) {
    this.readyState = 3;
    this.onclose({ code });
  }

  answer(head, ...blocks) {
    this.onmessage({ data: frame({ blocks: [], ...head }, ...blocks) });
  }
}

/** As viz/serve/connection.py says. */
function frame(head, ...blocks) {
  let text = JSON.stringify(head);
  while ((new TextEncoder().encode(text).length + 4) % 8) text += " ";
  const bytes = new TextEncoder().encode(text);
  const data = new Uint8Array([0, 0, 0, 0, ...bytes, ...blocks.flatMap((block) => [...block])]);
  new DataView(data.buffer).setUint32(0, bytes.length, true);
  return data.buffer;
}

function opened() {
  const sockets = [];
  const engine = new ServedEngine("ws://here/engine", (address) => {
    sockets.push(new FakeSocket(address));
    return sockets.at(-1);
  });
  return { engine, sockets };
}

const REQUEST = { texts: ["a text"], edits: [] };

async function traced(engine, socket, blocks = []) {
  const run = engine.trace(REQUEST);
  const { number } = socket.sent.at(-1);
  const sizes = blocks.map(([name, bytes]) => ({ name, bytes: bytes.length }));
  socket.answer({ number, answer: { header: { name: "é" }, predictions: [] }, blocks: sizes }, ...blocks.map(([, bytes]) => bytes));
  return run;
}

test("the address is the page's own, with its token", () => {
  const page = "https://here:7/?token=abc#layer=3";
  assert.equal(engineAddress(page), "wss://here:7/engine?token=abc");
});

test("the shown layer's weights travel with the answer, the others when they are looked at", async () => {
  const { engine, sockets: [socket] } = opened();
  socket.accept();
  const run = await traced(engine, socket, [["probs-0", new Uint8Array([1, 2, 3, 4])]]);
  assert.equal(run.header.name, "é");
  assert.deepEqual(await run.blocks.bytes("probs-0", 1, 3), new Uint8Array([2, 3]));
  assert.equal(socket.sent.length, 1);
  const bytes = run.blocks.bytes("probs-3");
  const again = run.blocks.bytes("probs-3");
  const { number, ask, blocks, request } = socket.sent.at(-1);
  assert.deepEqual({ ask, blocks, request }, { ask: "block", blocks: ["probs-3"], request: REQUEST });
  socket.answer({ number, answer: null, blocks: [{ name: "probs-3", bytes: 2 }] }, new Uint8Array([7, 8]));
  assert.deepEqual([await bytes, await again], [new Uint8Array([7, 8]), new Uint8Array([7, 8])]);
  assert.equal(socket.sent.length, 2);
  // What failed may be asked for again.
  const failed = run.blocks.bytes("probs-4");
  socket.answer({ number: socket.sent.at(-1).number, error: { name: "Error", message: "no" } });
  await assert.rejects(failed, { message: "no" });
  void run.blocks.bytes("probs-4");
  assert.equal(socket.sent.length, 4);
  void run.blocks.bytes("probs-3");
  engine.trace(REQUEST);
  assert.deepEqual(socket.sent.at(-1).blocks, ["probs-3"]);
});

test("no more blocks are asked for at once than the server takes, and a text never waits for them", async () => {
  const { engine, sockets: [socket] } = opened();
  socket.accept();
  const run = await traced(engine, socket);
  const from = socket.sent.length;
  const wanted = Array.from({ length: 60 }, (_, layer) => run.blocks.bytes(`key-${layer}`));
  assert.equal(socket.sent.length - from, 24);
  engine.trace(REQUEST);
  assert.equal(socket.sent.at(-1).ask, "trace");
  for (let i = from; i < socket.sent.length; i += 1) {
    const { number, ask, blocks: [name] } = socket.sent[i];
    if (ask === "block") socket.answer({ number, answer: null, blocks: [{ name, bytes: 1 }] }, new Uint8Array([i]));
  }
  assert.equal((await Promise.all(wanted)).length, 60);
});

test("an error of the server is an Error that says what it says", async () => {
  const { engine, sockets: [socket] } = opened();
  socket.accept();
  const sweep = engine.sweep(REQUEST, { position: 1, id: 2 });
  const step = engine.step(REQUEST, { temperature: 1, topK: null, topP: null, seed: 0 });
  const [first, second] = socket.sent;
  socket.answer({ number: first.number, error: { name: "AbortError", message: "newer" } });
  socket.answer({ number: second.number, error: { name: "Error", message: "writes no next token" } });
  await assert.rejects(sweep, { name: "AbortError", message: "newer" });
  await assert.rejects(step, { name: "Error", message: "writes no next token" });
});

test("what a break left unanswered is refused, and the next question opens another connection", async () => {
  const { engine, sockets } = opened();
  sockets[0].accept();
  const lost = engine.about();
  sockets[0].close();
  await assert.rejects(lost, /does not answer/);
  const newer = engine.trace(REQUEST);
  assert.equal(sockets.length, 2);
  sockets[1].accept();
  const [{ number, request }] = sockets[1].sent;
  assert.deepEqual(request, REQUEST);
  sockets[1].answer({ number, answer: {} });
  await newer;
});

test("a server that wants no more of this page says why, and is left alone", async () => {
  const { engine, sockets } = opened();
  sockets[0].accept();
  const about = engine.about();
  sockets[0].close(1013);
  await assert.rejects(about, /Too many pages/);
  await assert.rejects(engine.about(), /Too many pages/);
  const other = opened().engine;
  const asked = other.about();
  other.close();
  await assert.rejects(asked, /let the model go/);
  await assert.rejects(other.trace(REQUEST), /let the model go/);
  assert.equal(sockets.length, 1);
});
