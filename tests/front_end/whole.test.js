/** How a layer is wired from the choices of its model, and what a page without a model says. */

import assert from "node:assert/strict";
import test from "node:test";

import { layerSteps } from "../../viz/static/core/data/source.js";

const GPT2 = { norm: "before", firstNorm: true, parallel: false, queryKeyNorm: "none", rotary: false, gated: false };

/** What a step reads. */
function reads(built, layer, id) {
  return layerSteps(built, layer).find((step) => step.id === id)?.reads;
}

test("each step reads what layers/parts.py says, wherever norms stand", () => {
  assert.deepEqual(reads(GPT2, 0, "query"), ["attention_input"]);
  assert.deepEqual(reads({ ...GPT2, firstNorm: false }, 0, "query"), ["resid_pre"]);
  assert.deepEqual(reads({ ...GPT2, firstNorm: false }, 1, "query"), ["attention_input"]);
  assert.deepEqual(reads({ ...GPT2, norm: "after" }, 1, "mlp_pre"), ["resid_mid"]);
  assert.deepEqual(reads({ ...GPT2, norm: "both" }, 1, "resid_mid"), ["resid_pre", "attention_output"]);
  assert.deepEqual(reads({ ...GPT2, norm: "output" }, 1, "attention_output"), ["attn_out"]);
  assert.deepEqual(reads({ ...GPT2, parallel: true }, 1, "mlp_input"), ["resid_pre"]);
  assert.deepEqual(reads({ ...GPT2, rotary: true }, 1, "key"), ["key_unrotated"]);
  assert.deepEqual(reads({ ...GPT2, gated: true }, 1, "mlp_post"), ["mlp_gate", "mlp_pre"]);
});

test("no step stands before what it reads", () => {
  for (const norm of ["before", "after", "output", "both"]) {
    for (const parallel of [false, true]) {
      for (const rotary of [false, true]) {
        const steps = layerSteps({ ...GPT2, norm, parallel, rotary, gated: rotary }, 1);
        const ids = steps.map(({ id }) => id);
        assert.equal(new Set(ids).size, ids.length);
        steps.forEach(({ reads: from }, i) => from.forEach((id) => assert.ok(ids.slice(0, i).includes(id), id)));
      }
    }
  }
});
