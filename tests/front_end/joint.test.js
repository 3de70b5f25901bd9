/** Queries and keys in one plane: no weight changes, and the plane is that of the largest spread. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { joined, principal, startsOf, weightsOf } from "../../viz/static/views/joint/plane.js";
import { kindOf, nearestPoint, placeOf } from "../../viz/static/views/joint/joint.js";
import { workedFigure } from "../../viz/static/views/arithmetic/every.js";
import { sumStep } from "../../viz/static/views/arithmetic/worked.js";
import { assertNear, tokensOf } from "./near.js";

/** Numbers that look random and are the same each time. */
function drawn(count, start = 1) {
  let state = start;
  return Float32Array.from({ length: count }, () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647 - 0.5;
  });
}

const WIDTH = 3;
const texts = [tokensOf("[CLS]", "straw", "##berries", "."), tokensOf("two", "words", "more")];
const collected = (causal = false) => ({
  from: texts.map((tokens) => ({ texts: ["…"], tokens })),
  width: WIDTH,
  scale: 0.7,
  causal,
  query: drawn(7 * WIDTH),
  key: drawn(7 * WIDTH, 5).map((value) => value + 2),
});

test("moving keys and scaling changes no weight", () => {
  const given = collected();
  const { query, key } = joined(given, 1.7);
  for (const [first, end] of [[0, 4], [4, 7]]) {
    for (let i = first; i < end; i += 1) {
      // Queries keep their own mean where weights are asked for: only keys may be moved.
      const mean = [0, 1, 2].map((d) => given.query.reduce((sum, value, at) => sum + (at % WIDTH === d ? value : 0), 0) / 7);
      const own = query.map((value, at) => value + 1.7 * mean[at % WIDTH]);
      assertNear(weightsOf({ ...given, query: own, key }, i, first, end), weightsOf(given, i, first, end), 1e-6);
    }
  }
});

test("weights are the softmax of the scaled products, of the keys that may be seen", () => {
  const given = collected(true);
  assert.deepEqual(startsOf(given), [0, 4, 7]);
  assert.deepEqual(weightsOf(given, 4, 4, 7), [1]);
  const dot = (i, j) => [0, 1, 2].reduce((sum, d) => sum + given.query[i * WIDTH + d] * given.key[j * WIDTH + d], 0);
  const exps = [4, 5].map((j) => Math.exp(0.7 * dot(5, j)));
  assertNear(weightsOf(given, 5, 4, 7), exps.map((one) => one / (exps[0] + exps[1])), 1e-12);
});

test("the plane is that of the largest spread", () => {
  // Along (1, 1, 0) with spread 4, along (0, 0, 1) with spread 1, nothing else.
  const root = Math.SQRT1_2;
  const points = Float64Array.from([[-4, 0], [4, 0], [0, 1], [0, -1]].flatMap(([a, b]) => [a * root, a * root, b]));
  const { x, y, covered } = principal(points, WIDTH);
  assertNear(x, [-4, 4, 0, 0], 1e-9);
  assertNear(y, [0, 0, 1, -1], 1e-9);
  assertNear([covered], [1], 1e-12);
});

test("tokens are words, pieces, marks and special ones; the nearest point is found", () => {
  assert.deepEqual([0, 1, 2, 3].map((i) => kindOf(texts[0], i)), ["special", "word", "piece", "mark"]);
  const points = [{ x: 0, y: 0 }, { x: 1, y: 1 }];
  const [x, y] = placeOf(points[1], 300, 200);
  assert.equal(nearestPoint(points, [x - 5, y + 5], 300, 200), points[1]);
  assert.equal(nearestPoint(points, [150, 100], 300, 200), null);
});

test("a worked number is taken away with all of its terms", () => {
  const terms = Array.from({ length: 20 }, (_, i) => ({ name: `dimension ${i}`, factors: [i, 2], value: 2 * i }));
  const steps = [sumStep("products", "Multiply", "", terms, ["x", "W"])];
  const said = [];
  const pen = { text: (x, y, text) => said.push(text), rect() {} };
  const figure = workedFigure({ title: "query", steps, theme: "light" }, {});
  figure.paint(pen);
  const rows = [...figure.rows()];
  assert.equal(rows.length, 21);
  assert.deepEqual(rows[3], ["Multiply", "dimension 3", 3, 2, 6]);
  assert.deepEqual(rows[20], ["Multiply", "", "", "", 380]);
  assert.ok(said.includes("… and 12 more"));
  assert.ok(said.includes("+380.000"));
});
