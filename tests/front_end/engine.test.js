/** The engine of a live page: what it refuses, and in which order it answers. Its numbers: tests/live. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { engineInFile } from "../../viz/static/engine/in_file.js";
import { Plan } from "../../viz/static/engine/edits.js";

/** As viz/engine_edits.py writes them: null stands for as many as tokens. */
const place = (layer, head, key, neuron) => ({ layer, head, position: null, key, neuron });
const quantity = (axes, places, refused = { hide: "hide takes a key out of scores" }) => ({ axes, places, refused });
const MATRIX = ["head", "query", "key"];
const NO_MEAN = "a mean over positions says nothing";
const CONFIG = {
  n_layers: 2,
  causal: true,
  quantities: {
    embed: quantity(["position", "d_model"], place(0, 0, 0, 6)),
    scores: quantity(MATRIX, place(2, 3, null, 0), { mean: NO_MEAN }),
    probs: quantity(MATRIX, place(2, 3, null, 0), { mean: NO_MEAN, hide: "hide takes a key out of scores" }),
    z: quantity(["head", "position", "d_head"], place(2, 3, 0, 2)),
    mlp_out: quantity(["position", "d_model"], place(2, 0, 0, 6)),
  },
};

for (const [edit, message] of [
  [{ quantity: "zed" }, /^zed cannot be edited; there are embed, scores, probs, z/],
  [{ quantity: "constructor" }, /^constructor cannot be edited/],
  [{ quantity: "z", change: "double" }, /^double is not a change; there are zero, mean/],
  [{ quantity: "z", change: "toString" }, /^toString is not a change/],
  [{ quantity: "z", layer: 2 }, "z: there is no layer 2; expected 0 to 1"],
  [{ quantity: "z", head: 3 }, "z: there is no head 3; expected 0 to 2"],
  [{ quantity: "z", position: 5 }, "z: there is no position 5; expected 0 to 4"],
  [{ quantity: "z", position: 0.5 }, "z: there is no position 0.5; expected 0 to 4"],
  [{ quantity: "mlp_out", head: 1 }, "mlp_out has no head: leave it out"],
  [{ quantity: "z", key: 1 }, "z has no key: leave it out"],
  [{ quantity: "probs", change: "mean" }, NO_MEAN],
  [{ quantity: "probs", change: "hide", key: 1 }, /^hide takes a key out of scores/],
  [{ quantity: "scores", change: "hide" }, "hide: which key?"],
  [{ quantity: "z", change: "set" }, "set of z: undefined is not a number"],
  [{ quantity: "z", change: "set", value: NaN }, "set of z: NaN is not a number"],
  [{ quantity: "probs", change: "set", value: 0.5 }, "set of probs: which key?"],
  [{ quantity: "probs", change: "set", key: 1, value: 1.5 }, /1.5 is not a weight/],
]) {
  test(`refused by name: ${JSON.stringify(edit)}`, () => {
    assert.throws(() => new Plan([{ change: "zero", ...edit }], CONFIG, 5), { message });
  });
}

test("answers find their questions in any order, a failure holds up nothing, and all hear of the end", async () => {
  const asked = [];
  const worker = { postMessage: (data) => data.call && asked.push(data), terminate() {} };
  const answer = (place, result) => worker.onmessage({ data: { call: asked[place].call, ...result } });
  const engine = engineInFile(worker, { weights: new ArrayBuffer(0) });
  const trace = (text) => engine.trace({ texts: [text], edits: [] });
  const [first, second] = ["", "b"].map(trace);
  assert.deepEqual(asked.map(({ given }) => given[0].texts[0]), ["", "b"]);
  answer(1, { result: { number: 2, header: {}, predictions: [] } });
  const run = await second;
  assert.equal(run.number, 2);
  void run.blocks.bytes("probs-0", 3).catch(() => {});
  assert.deepEqual(asked[2].given, [2, "probs-0", 3]);
  answer(0, { error: "the text gives no token" });
  await assert.rejects(first, { message: "the text gives no token" });
  const waiting = [engine.about(), trace("a"), trace("b")];
  engine.close();
  const all = [...waiting, engine.about()].map((one) => assert.rejects(one, { message: "the engine was closed" }));
  await Promise.all(all);
});
