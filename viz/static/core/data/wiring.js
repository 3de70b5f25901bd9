/**
 * How a layer is wired: its steps in the order of the data, from the choices of its model. They are the
 * table of layers/layer.py, name for name, with the norms that stand between its quantities.
 *
 * @typedef {import("./source.js").Built} Built
 *
 * @typedef {object} LayerStep
 * @property {string} id
 * @property {"stream" | "attention" | "mlp"} part
 * @property {"model" | "head" | "key" | "mlp"} of  its last axis
 * @property {string[]} reads  the steps that it is made of
 * @property {string} norm  the name of the norm that it ends with; empty: none
 * @property {boolean} between  it is that norm and nothing else: the engine has no name for it
 */

/**
 * @param {string} id
 * @param {LayerStep["part"]} part
 * @param {LayerStep["of"]} of
 * @param {string[]} reads
 * @param {string} [norm]
 * @returns {LayerStep}
 */
function step(id, part, of, reads, norm = "") {
  return { id, part, of, reads, norm, between: false };
}

/**
 * @param {string} id
 * @param {"attention" | "mlp"} part
 * @param {string} read
 * @param {string} norm
 * @returns {LayerStep[]}
 */
function between(id, part, read, norm) {
  return [{ id, part, of: "model", reads: [read], norm, between: true }];
}

/**
 * @param {Built} built
 * @param {number} layer
 * @returns {LayerStep[]}
 */
export function layerSteps(built, layer) {
  const { norm, parallel, firstNorm } = built;
  const before = norm === "before" || norm === "both";
  const behind = norm === "output" || norm === "both";
  const after = (/** @type {string} */ name) => (norm === "after" ? name : "");
  const stream = parallel ? "resid_pre" : "resid_mid";
  const [ofAttention, ofMlp] = [before && (layer > 0 || firstNorm), before];
  const [fromAttention, fromMlp] = behind ? ["attention_output", "mlp_output"] : ["attn_out", "mlp_out"];
  const middle = step("resid_mid", "stream", "model", ["resid_pre", fromAttention], after("attention_norm"));
  return [
    step("resid_pre", "stream", "model", []),
    ...(ofAttention ? between("attention_input", "attention", "resid_pre", "attention_norm") : []),
    ...headSteps(built, ofAttention ? "attention_input" : "resid_pre"),
    ...(behind ? between("attention_output", "attention", "attn_out", "attention_output_norm") : []),
    ...(parallel ? [] : [middle]),
    ...(ofMlp ? between("mlp_input", "mlp", stream, "mlp_norm") : []),
    ...mlpSteps(built, ofMlp ? "mlp_input" : stream),
    ...(behind ? between("mlp_output", "mlp", "mlp_out", "mlp_output_norm") : []),
    ...(parallel ? [middle] : []),
    step("resid_post", "stream", "model", ["resid_mid", fromMlp], after("mlp_norm")),
  ];
}

/**
 * @param {Built} built
 * @param {string} x  what W_Q, W_K and W_V read
 */
function headSteps({ rotary, queryKeyNorm }, x) {
  const norm = (/** @type {string} */ name) => (queryKeyNorm === "none" ? "" : `attention.${name}_norm`);
  const made = rotary ? "_unrotated" : "";
  return [
    step(`query${made}`, "attention", "head", [x], norm("query")),
    step(`key${made}`, "attention", "head", [x], norm("key")),
    step("value", "attention", "head", [x]),
    ...(rotary ? ["query", "key"].map((name) => step(name, "attention", "head", [name + made])) : []),
    step("probs", "attention", "key", ["query", "key"]),
    step("z", "attention", "head", ["probs", "value"]),
    step("attn_out", "attention", "model", ["z"]),
  ];
}

/**
 * @param {Built} built
 * @param {string} x  what W_in and W_gate read
 */
function mlpSteps({ gated }, x) {
  return [
    ...(gated ? [step("mlp_gate", "mlp", "mlp", [x])] : []),
    step("mlp_pre", "mlp", "mlp", [x]),
    step("mlp_post", "mlp", "mlp", gated ? ["mlp_gate", "mlp_pre"] : ["mlp_pre"]),
    step("mlp_out", "mlp", "model", ["mlp_post"]),
  ];
}

/** What the norms of a model are called. @param {Pick<Built, "normKind">} built */
export function normName({ normKind }) {
  return normKind === "rms" ? "RMSNorm" : "LayerNorm";
}
