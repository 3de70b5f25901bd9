/** A head's weights where a model has windows and a soft cap; the scores were computed with NumPy in float64: q @ k.T * scale. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { attend, usualQuery } from "../../viz/static/core/data/softmax.js";
import { assertNear, tokensOf } from "./near.js";

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

test("the usual query is the last word", () => {
  assert.equal(usualQuery(tokensOf("[CLS]", "cat", "sat", ".", "[SEP]")), 2);
  assert.equal(usualQuery(tokensOf("[CLS]", "!", "?", "[SEP]")), 2);
  assert.equal(usualQuery(tokensOf("[CLS]", "[SEP]")), 1);
});
