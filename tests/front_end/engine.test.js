/** The engine of a live page: what it refuses, and in which order it answers. Its numbers: tests/live. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { engineInFile } from "../../viz/static/engine/in_file.js";
import { Plan } from "../../viz/static/engine/edits.js";

const [STREAM, HEADS, KEYS, MATRIX, MLP] = [["position", "d_model"], ["head", "position", "d_head"], ["kv_head", "position", "d_head"], ["head", "query", "key"], ["position", "d_mlp"]];
const AXES = {
  embed: STREAM, resid_pre: STREAM, query: HEADS, key: KEYS, value: KEYS, scores: MATRIX, probs: MATRIX, z: HEADS, attn_out: STREAM,
  resid_mid: STREAM, mlp_gate: MLP, mlp_pre: MLP, mlp_post: MLP, mlp_out: STREAM, resid_post: STREAM, logits: ["position", "vocab"],
};
const CONFIG = { n_layers: 2, n_heads: 3, n_kv_heads: 3, d_head: 2, d_model: 6, d_mlp: 7, vocab_size: 11, causal: true, absent: ["mlp_gate"], axes: AXES };

const refused = (edit, message) => {
  assert.throws(() => new Plan([{ change: "zero", ...edit }], CONFIG, 5), { message });
};

test("an edit that has no place in the model or the text is refused by name", () => {
  refused({ quantity: "mlp_gate" }, /has no mlp_gate/);
  refused({ quantity: "zed" }, /^zed cannot be edited; there are embed, resid_pre, query/);
  refused({ quantity: "constructor" }, /^constructor cannot be edited/);
  refused({ quantity: "z", change: "double" }, /^double is no change; there are zero, mean/);
  refused({ quantity: "z", layer: 2 }, "z: there is no layer 2; expected 0 to 1");
  refused({ quantity: "z", head: 3 }, "z: there is no head 3; expected 0 to 2");
  refused({ quantity: "z", position: 5 }, "z: there is no position 5; expected 0 to 4");
  refused({ quantity: "z", position: 0.5 }, "z: there is no position 0.5; expected 0 to 4");
  refused({ quantity: "z", neuron: 2 }, "z: there is no neuron 2; expected 0 to 1");
  refused({ quantity: "mlp_post", neuron: 7 }, "mlp_post: there is no neuron 7; expected 0 to 6");
  refused({ quantity: "mlp_out", head: 1 }, "mlp_out has no head: leave it out");
  refused({ quantity: "logits", layer: 1 }, "logits has no layer: leave it out");
  refused({ quantity: "z", key: 1 }, "z has no key: leave it out");
  refused({ quantity: "probs", neuron: 1 }, "probs has no neuron: leave it out");
});

test("a change that means nothing is refused", () => {
  refused({ quantity: "probs", change: "mean" }, /^the mean of probs over positions means nothing/);
  refused({ quantity: "probs", change: "hide", key: 1 }, "hide is a change of scores, not of probs");
  refused({ quantity: "scores", change: "hide" }, "hide: which key?");
  refused({ quantity: "z", change: "set" }, "set of z: undefined is no number");
  refused({ quantity: "z", change: "set", value: NaN }, "set of z: NaN is no number");
  refused({ quantity: "probs", change: "set", value: 0.5 }, "set of probs: which key?");
  refused({ quantity: "probs", change: "set", key: 1, value: 1.5 }, /1.5 is no weight/);
});

/** A row of weights for each of three tokens that do not look ahead. */
const WEIGHTS = { shape: [1, 3, 3], values: Float32Array.of(1, 0, 0, 0.25, 0.75, 0, 0.5, 0.25, 0.25) };

function changed(edit, value = WEIGHTS) {
  const plan = new Plan([{ quantity: "probs", ...edit }], { ...CONFIG, n_heads: 1 }, 3);
  return Array.from(plan.changed(edit.quantity ?? "probs", value, 0).values);
}

test("a weight that is set takes from the others in proportion", () => {
  assert.deepEqual(changed({ change: "set", position: 2, key: 0, value: 0 }).slice(6), [0, 0.5, 0.5]);
  assert.deepEqual(changed({ change: "set", position: 2, key: 0, value: 1 }).slice(6), [1, 0, 0]);
  // Of all tokens those that see the key and another one: the first has none to give to.
  assert.deepEqual(changed({ change: "set", key: 0, value: 0.5 }), [1, 0, 0, 0.5, 0.5, 0, 0.5, 0.25, 0.25]);
  assert.deepEqual(changed({ change: "set", key: 1, value: 0.5 }), [1, 0, 0, 0.5, 0.5, 0, Math.fround(1 / 3), 0.5, Math.fround(1 / 6)]);
  assert.throws(() => changed({ change: "set", position: 0, key: 0, value: 0.5 }), /gives no other token any weight/);
  assert.throws(() => changed({ change: "set", position: 0, key: 1, value: 0.5 }), /cannot look at position 1/);
});

test("a token keeps a key to look at", () => {
  const scores = { shape: [1, 3, 3], values: new Float32Array(9) };
  const hidden = changed({ quantity: "scores", change: "hide", key: 1, position: 2 }, scores);
  assert.deepEqual(hidden, [0, 0, 0, 0, 0, 0, 0, -Infinity, 0]);
  assert.throws(() => changed({ quantity: "scores", change: "hide", key: 0 }, scores), /no key is left for the token at position 0/);
});

/** A worker that answers when it is told to. */
function slowWorker() {
  const asked = [];
  const worker = { onmessage: null, postMessage: (data) => data.call && asked.push(data), terminate() {} };
  const answer = (result) => worker.onmessage({ data: { call: asked.shift().call, result } });
  return { worker, asked, answer };
}

const run = (number) => ({ number, header: {}, predictions: [] });
const settled = () => new Promise((resolve) => setTimeout(resolve));

test("of the requests that have not begun only the newest is made", async () => {
  const { worker, asked, answer } = slowWorker();
  const engine = engineInFile(worker, { weights: new ArrayBuffer(0) });
  const [first, second, third] = ["a", "b", "c"].map((text) => engine.trace({ texts: [text], edits: [] }));
  await assert.rejects(second, { name: "AbortError" });
  assert.deepEqual(asked.map(({ given }) => given[0].texts), [["a"]]);
  answer(run(1));
  assert.equal((await first).number, 1);
  await settled();
  assert.deepEqual(asked.map(({ given }) => given[0].texts), [["c"]]);
  answer(run(2));
  assert.equal((await third).number, 2);
});

test("a request that fails does not hold up the next one", async () => {
  const { worker, asked, answer } = slowWorker();
  const engine = engineInFile(worker, { weights: new ArrayBuffer(0) });
  const first = engine.trace({ texts: [""], edits: [] });
  const second = engine.trace({ texts: ["a"], edits: [] });
  worker.onmessage({ data: { call: asked.shift().call, error: "the text gives no token" } });
  await assert.rejects(first, { message: "the text gives no token" });
  await settled();
  answer(run(2));
  assert.equal((await second).number, 2);
});

test("what waits when the engine is closed is told so", async () => {
  const { worker } = slowWorker();
  const engine = engineInFile(worker, { weights: new ArrayBuffer(0) });
  const waiting = [engine.about(), engine.trace({ texts: ["a"], edits: [] }), engine.trace({ texts: ["b"], edits: [] })];
  engine.close();
  waiting.push(engine.about());
  for (const one of waiting) await assert.rejects(one, { message: "the engine was closed" });
});
