/** The pure parts of the live page: edits, undo, address, words, runs, what a saved page holds. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { askedOf, History, pictureOf, readAddress, readEdit, writeAddress, writeEdit } from "../../viz/static/live/asked.js";
import { movedEdits, movedTokens, placeOf, toggled, withEdit, withoutEdit } from "../../viz/static/live/edits.js";
import { Runner, Runs } from "../../viz/static/live/runs.js";
import { masked, spansOf } from "../../viz/static/live/cards.js";
import { tokensOf } from "./near.js";

const HEAD = { quantity: "z", change: "zero", layer: 0, head: 1 };
const EDGE = { quantity: "scores", change: "hide", layer: 2, head: 0, position: 4, key: 1 };
const WEIGHT = { quantity: "probs", change: "set", layer: 0, head: 2, position: 3, key: 2, value: 0.35 };
const NEURON = { quantity: "mlp_post", change: "mean", layer: 3, neuron: 411 };
const TOKEN = { quantity: "scores", change: "hide", key: 5 };
const ALL = [HEAD, EDGE, WEIGHT, NEURON, TOKEN, { quantity: "attn_out", change: "text", layer: 1 }];

test("an edit of a place takes the place of the one before it, and a second click takes it back", () => {
  const mean = { ...HEAD, change: "mean" };
  assert.deepEqual(withEdit([HEAD, EDGE], mean), [mean, EDGE]);
  assert.deepEqual(toggled([HEAD, EDGE], mean), [mean, EDGE]);
  assert.deepEqual(toggled([HEAD, EDGE], HEAD), [EDGE]);
  assert.deepEqual(withoutEdit([HEAD, EDGE], mean), [EDGE]);
  assert.equal(new Set(ALL.map(placeOf)).size, ALL.length);
});

test("edits follow their tokens, and go with them", () => {
  const before = ["[CLS]", "the", "old", "horse", "ran", "[SEP]"];
  const longer = ["[CLS]", "the", "very", "old", "horse", "ran", "[SEP]"];
  const other = ["[CLS]", "the", "old", "dogs", "ran", "[SEP]"];
  assert.deepEqual(movedTokens(before, longer), [0, 1, 3, 4, 5, 6]);
  assert.deepEqual(movedTokens(before, other), [0, 1, 2, null, 4, 5]);
  assert.deepEqual(movedTokens(before, before), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(movedTokens(["a", "a"], ["a"]), [0, null]);
  assert.deepEqual(movedEdits([EDGE, HEAD], movedTokens(before, longer)), [{ ...EDGE, position: 5, key: 1 }, HEAD]);
  assert.deepEqual(movedEdits([WEIGHT, HEAD], movedTokens(before, other)), [HEAD]);
});

test("steps are taken back and made again; what is typed is one step", () => {
  let at = 0;
  const history = new History("a", () => at);
  history.change("ab", "type");
  at = 500;
  history.change("abc", "type");
  at = 5000;
  history.change("abcd", "type");
  history.change("edit");
  assert.ok(history.undo());
  assert.equal(history.now, "abcd");
  assert.ok(history.undo() && history.undo());
  assert.equal(history.now, "a");
  assert.equal(history.undo(), false);
  assert.ok(history.redo() && history.redo());
  assert.equal(history.now, "abcd");
  history.change("new");
  assert.equal(history.redo(), false);
  history.undo();
  history.amend("abcd!");
  history.redo();
  history.undo();
  assert.equal(history.now, "abcd!");
});

test("what is asked for comes back from the address, beside the state of the picture", () => {
  const asked = {
    text: "a & b=c#? [MASK] ä\u{1f600}",
    second: "",
    other: "x*y",
    edits: ALL,
    sampling: { temperature: 0.35, topK: 7, topP: 0.9, seed: 12 },
    to: "mean",
    shade: "effect",
    place: 3,
    word: 512,
  };
  const hash = writeAddress(asked, "view=model&layer=2");
  assert.deepEqual(readAddress(`#${hash}`, "usual"), asked);
  assert.equal(pictureOf(`#${hash}`), "view=model&layer=2");
  assert.deepEqual(readAddress("", "usual"), askedOf("usual"));
  assert.equal(writeAddress(askedOf("t"), ""), "text=t");
});

test("an edit is written in a few letters, and nothing else is read as one", () => {
  assert.equal(writeEdit(WEIGHT), "probs-set-L0-H2-P3-K2-V0.35");
  for (const edit of ALL) assert.deepEqual(readEdit(writeEdit(edit)), edit);
  assert.deepEqual(readEdit("probs-set-L0-V1e-7").value, 1e-7);
  const wrong = ["", "z", "z-zap", "z-zero-L-1", "z-zero-L1.5", "z-zero-H1-L0", "z-zero-V1", "probs-set-L0", "__proto__-zero", "z-zero-L1x", "<b>-zero"];
  for (const written of wrong) assert.equal(readEdit(written), null, written);
});

test("tokens are found in the text as it is typed, and a word of several pieces is masked whole", () => {
  const tokens = tokensOf("[CLS]", "the", "str", "##aw", "the", "cafe", ".", "[SEP]");
  const text = "The straw, the Café.";
  assert.deepEqual(spansOf(text, tokens, 0), [null, [0, 3], [4, 7], [7, 9], [11, 14], [15, 19], [19, 20], null]);
  assert.equal(masked(text, tokens, 3, "[MASK]"), "The [MASK], the Café.");
  assert.equal(masked(text, tokens, 5, "[MASK]"), "The straw, the [MASK].");
  assert.equal(masked(text, tokens, 0, "[MASK]"), null);
  const pair = tokensOf("[CLS]", "a", "[SEP]", "|", "a", "b", "[SEP]");
  assert.equal(masked("a b", pair, 4, "[M]"), "a [M]");
});

test("of many wishes the last is run, and each run that ends is shown", async () => {
  const ran = [];
  let wish = 0;
  let rests = 0;
  const failures = [];
  const runner = new Runner(async () => {
    const now = wish;
    await new Promise((resolve) => setTimeout(resolve, 5));
    if (now === 4) throw new Error("no");
    ran.push(now);
  }, (error) => failures.push(error.message), () => (rests += 1));
  const done = [1, 2, 3].map((next) => {
    wish = next;
    return runner.ask();
  });
  await Promise.all(done);
  assert.deepEqual(ran, [1, 3]);
  wish = 4;
  await runner.ask();
  assert.deepEqual([ran.length, failures, rests], [2, ["no"], 2]);
});

test("a run that the engine has let go of is run again when it is read", async () => {
  const kept = new Map();
  let count = 0;
  const read = async (number) => {
    if (!kept.has(number)) throw new Error("not kept");
    return number;
  };
  const engine = {
    async trace() {
      count += 1;
      const number = count;
      kept.set(number, true);
      const header = { tokens: tokensOf("a"), arrays: [], layers: [0], heads: [0], sizes: { n_layers: 1, n_heads: 1, d_head: null }, texts: ["a"] };
      return { number, header, blocks: { bytes: () => read(number) }, predictions: [] };
    },
    read,
  };
  const runs = new Runs(engine, { predicts: "masked" });
  const one = await runs.of({ texts: ["a"], edits: [] });
  assert.equal(await runs.of({ texts: ["a"], edits: [] }), one);
  kept.clear();
  assert.equal(await one.example.source.read("z", 0), 2);
  kept.clear();
  assert.equal(await one.example.blocks.bytes("probs-0"), 3);
  runs.keep([]);
  assert.notEqual(await runs.of({ texts: ["a"], edits: [] }), one);
});
