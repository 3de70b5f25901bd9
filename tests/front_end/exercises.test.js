/** The exercises: guesses, verdicts, the address. Their numbers: tests/live. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { readExercise } from "../../viz/static/live/asked.js";
import { guessOf, judged, Lab, rounded } from "../../viz/static/live/exercises/player.js";
import { EXERCISES } from "../../viz/static/live/exercises/exercises.js";

test("a guess is a number in its range, or one of the choices", () => {
  const number = { between: [0, 1] };
  assert.equal(guessOf(number, " 0,5 "), 0.5);
  assert.equal(guessOf(number, "50 %"), 0.5);
  for (const wrong of ["", " ", "many", "1.5", "-1", "NaN", "Infinity", "%", "5%0"]) assert.equal(guessOf(number, wrong), null);
  const choice = { choices: ["was", "were"] };
  assert.equal(guessOf(choice, "were"), "were");
  assert.equal(guessOf(choice, ""), null);
});

test("a verdict says by how much a guess is off", () => {
  const step = { tolerance: (answer) => answer / 100 };
  assert.deepEqual(judged(step, 9, 9.0884), { right: true, said: "Right: you said 9, it is 9.0884, so you are off by 0.0884." });
  assert.equal(judged(step, 8.9, 9.0884).right, false);
  assert.equal(judged({}, 60, 60).right, true);
  assert.deepEqual(judged({}, "was", "were"), { right: false, said: "You said “was”; it is “were”." });
  assert.deepEqual([60, 0.71672, 0.00000123].map(rounded), ["60", "0.7167", "1.2e-6"]);
});

test("a guess of nothing is never right: each step has a tolerance below half of its range", () => {
  for (const { steps } of EXERCISES) {
    for (const { choices, between, tolerance } of steps) {
      if (choices) assert.ok(choices.length > 1);
      else if (Number.isFinite(between[1])) assert.ok(tolerance(between[1]) < (between[1] - between[0]) / 4);
    }
  }
});

test("an address names an exercise and a step", () => {
  assert.deepEqual(readExercise("#text=a&exercise=2&step=3"), { exercise: 2, step: 3 });
  for (const none of ["", "exercise=x&step=-1", "exercise=1000"]) assert.deepEqual(readExercise(none), { exercise: 0, step: 1 });
});

test("the page's own run is waited for, and a run that it pushed aside is asked for again", async () => {
  const log = [];
  const trace = async () => {
    log.push("trace");
    if (log.length < 3) throw Object.assign(new Error("newer"), { name: "AbortError" });
    return { number: 1, ids: [1, 2], header: { tokens: { text: ["a", "b"] } } };
  };
  const run = await new Lab({ trace }, {}, async () => void log.push("rested")).run("a b");
  assert.deepEqual(log, ["rested", "trace", "rested", "trace"]);
  assert.equal(run.place("b"), 1);
  assert.throws(() => run.place("c"), /no token “c”/);
  const broken = async () => { throw new Error("too long"); };
  await assert.rejects(new Lab({ trace: broken }, {}, async () => {}).run("a"), /too long/);
});
