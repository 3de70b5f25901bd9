/** Expected numbers were computed with NumPy in float64: softmax(q @ k.T * scale). */

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
test("scores are the scaled dot products of one query with every key", () => {
  SCORES.forEach((row, query) => assertNear(scoresOf(VECTORS, query), row, 1e-6));
});

test("softmax is what NumPy computes", () => {
  SCORES.forEach((row, query) => assertNear(softmax(Float64Array.from(row)), WEIGHTS[query], 1e-11));
});

test("a head's weights, each row with its own query", () => {
  assertNear(attend(VECTORS, false), WEIGHTS.flat(), 1e-7);
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
