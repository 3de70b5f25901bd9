/** Expected numbers were computed with NumPy in float64: softmax(q @ k.T * scale). */

import assert from "node:assert/strict";
import { test } from "node:test";

import { attend, scoresOf, softmax } from "../../viz/static/core/data/softmax.js";
import { assertNear } from "./near.js";

const VECTORS = {
  query: Float32Array.of(-0.8, -1.32, -0.25, 0.42, 1.14, 0.11),
  key: Float32Array.of(-0.55, -0.78, 0.75, 1.63, 0.27, -1.23, -0.96, 1.6, 0.2, -1.73),
  value: null,
  nQueries: 3,
  nKeys: 5,
  width: 2,
  scale: Math.SQRT1_2,
  exact: true,
};
const SCORES = [
  [1.039164125632, -1.945675019113, 0.995323505198, -0.950351513915, 1.501611960528],
  [-0.134420999104, 0.351502780928, -0.413021070891, 0.644881384442, -0.549139126269],
  [-0.50402571363, 0.731360543781, 0.121975919755, -0.649406867842, 0.026657925651],
];
const WEIGHTS = [
  [0.26792612953857864, 0.013543031867370483, 0.2564338370293703, 0.03664201991312435, 0.4254549816515563],
  [0.16069430191840126, 0.2612368832242382, 0.1216202812774179, 0.35030569857798366, 0.10614283500195895],
  [0.11268098407759497, 0.38758955577322046, 0.21072675826595424, 0.09743441861926608, 0.19156828326396422],
];
const CAUSAL = {
  ...VECTORS,
  query: Float32Array.of(-0.08, -1.16, -0.63, -0.49, -0.71, 0.55, -0.06, -0.59, 0.41, 0.83, -1.64, -0.26),
  nQueries: 4,
  nKeys: 4,
  width: 3,
  scale: 0.5,
};
const CAUSAL_WEIGHTS = [
  [1, 0, 0, 0],
  [0.4340858653916155, 0.5659141346083845, 0, 0],
  [0.3150017427942054, 0.3556788338248112, 0.3293194233809834, 0],
  [0.2431219373865856, 0.12163358422077722, 0.13419086033684793, 0.5010536180557892],
];

test("scores are the scaled dot products of one query with every key", () => {
  SCORES.forEach((row, query) => assertNear(scoresOf(VECTORS, query), row, 1e-6));
});

test("softmax is what NumPy computes", () => {
  SCORES.forEach((row, query) => assertNear(softmax(Float64Array.from(row)), WEIGHTS[query], 1e-11));
});

test("adding a number to all scores changes no weight, however large the number", () => {
  for (const shift of [1, -50, 5000]) {
    assertNear(softmax(Float64Array.from(SCORES[0], (score) => score + shift)), WEIGHTS[0], 1e-11);
  }
});

test("keys that are not allowed get nothing, and the others share all of it", () => {
  const [first, second] = [Math.exp(0.3), Math.exp(-0.7)];
  const expected = [first / (first + second), second / (first + second), 0, 0];
  assertNear(softmax(Float64Array.of(0.3, -0.7, 900, 2), 2), expected);
});

test("a head's weights, each row with its own query", () => {
  assertNear(attend(VECTORS, false), WEIGHTS.flat(), 1e-7);
});

test("a causal head looks back only", () => {
  assertNear(attend({ ...CAUSAL, key: CAUSAL.query }, true), CAUSAL_WEIGHTS.flat(), 1e-7);
});

test("equal keys share evenly", () => {
  const key = Float32Array.from({ length: 10 }, (_, i) => (i % 2 ? 2 : -1));
  const probs = attend({ ...VECTORS, key }, false);
  assert.ok(probs.every((weight) => Math.abs(weight - 0.2) < 1e-7));
});

test("a window leaves out keys before and after it, and a soft cap squeezes scores first", () => {
  const masked = (row, from, to) => row.map((score, key) => (key >= from && key < to ? 2 * Math.tanh(score / 2) : -Infinity));
  const expected = SCORES.flatMap((row, query) => {
    const scores = masked(row, Math.max(0, query - 1), query + 2);
    const exps = scores.map((score) => Math.exp(score));
    const sum = exps.reduce((total, exp) => total + exp, 0);
    return exps.map((exp) => exp / sum);
  });
  assertNear(attend({ ...VECTORS, softCap: 2, window: [1, 1] }, false), expected, 1e-6);
});
