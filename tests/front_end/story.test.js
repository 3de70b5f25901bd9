/** The story: guesses, verdicts, progress. Its numbers: tests/live. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { guessOf, judged, Lab, rounded } from "../../viz/static/live/story/lab.js";
import { CHAPTERS } from "../../viz/static/live/story/steps.js";

test("a guess is a number in its range, or one of the choices", () => {
  const number = { between: [0, 1] };
  assert.equal(guessOf(number, " 0,5 "), 0.5);
  assert.equal(guessOf(number, "50 %"), 0.5);
  for (const wrong of ["", " ", "many", "1.5", "-1", "NaN", "Infinity", "%", "5%0"]) assert.equal(guessOf(number, wrong), null);
  const choice = { choices: ["was", "were"] };
  assert.equal(guessOf(choice, "were"), "were");
  assert.equal(guessOf(choice, ""), null);
});

test("a verdict says what was guessed and what is right", () => {
  const step = { tolerance: 0.1 };
  assert.deepEqual(judged(step, 9, 9.0884), { right: true, said: "✓ Right, within 0.1: you said 9, it is 9.0884." });
  assert.deepEqual(judged(step, 0.5, 0.3063), { right: false, said: "≈ Close: you said 0.5, it is 0.3063." });
  assert.deepEqual(judged(step, 0.6, 0.3063), { right: false, said: "✗ Not yet: you said 0.6, it is 0.3063." });
  assert.equal(judged({}, 60, 60).right, true);
  assert.deepEqual(judged({}, "was", "were"), { right: false, said: "✗ You said “was”; it is “were”." });
  assert.deepEqual([60, 0.71672, 0.000123, 1e-13].map(rounded), ["60", "0.7167", "0.00012", "0"]);
});

test("a guess of nothing is never right: each step has a tolerance below half of its range", () => {
  for (const { steps } of CHAPTERS) {
    for (const { choices, between, tolerance } of steps) {
      if (choices) assert.ok(choices.length > 1);
      else if (Number.isFinite(between[1])) assert.ok(tolerance < (between[1] - between[0]) / 4);
    }
  }
});

test("progress is told, and a token that the text does not have is refused", async () => {
  const trace = async ({ texts: [text] }) => ({ number: 1, ids: [1, 2], header: { tokens: { text: text.split(" ") } } });
  const lab = new Lab({ trace }, {});
  const run = await lab.run("a b");
  assert.equal(run.place("b"), 1);
  assert.throws(() => run.place("c"), /no token “c”/);
  const told = [];
  lab.progress = (...now) => told.push(now);
  assert.deepEqual(await lab.each(["a", "b c"], async (text) => (await lab.run(text)).words.length), [1, 2]);
  assert.deepEqual(told, [[1, 2], [2, 2]]);
});
