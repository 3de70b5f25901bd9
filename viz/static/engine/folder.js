/**
 * A Hugging Face folder as the engine has a model: config.json, tokenizer.json, and safetensors read by slices.
 *
 * The tables are those that Python reads folders by (viz/any_model.py). A field that changes a number is honoured or
 * refused, as there; every refusal is one sentence.
 *
 * @import { Config } from "./model.js"
 * @import { Kind, Stored } from "./product.js"
 * @import { Vocabulary } from "./tokens.js"
 *
 * @typedef {Map<string, Blob>} Files  by their names in the folder
 * @typedef {Record<string, any>} Json
 * @typedef {Json} Tables  what viz/any_model.py writes
 * @typedef {object} Part  which rows of a stored tensor are a weight, where it holds several
 * @property {number} start  in a block
 * @property {number} rows  of a block
 * @property {number} block  the rows of a block, those of the others included
 *
 * @typedef {object} Wanted  a weight of the model, and where a folder has it
 * @property {string} ours
 * @property {string[]} names  the usual one first
 * @property {number[]} shape
 * @property {boolean} turned  stored as (in, out)
 * @property {Part | null} part
 *
 * @typedef {object} Tensor  in a file
 * @property {string} name
 * @property {Blob} data
 * @property {string} dtype
 * @property {number[]} shape
 */

import { Weights } from "./model.js";
import { KINDS, single } from "./product.js";
import { idsOf } from "./tokens.js";
import { precompiled } from "./unigram.js";

/** The longest header of a safetensors file, and the longest JSON beside it, in bytes. */
const LONGEST_HEADER = 1e8;
const LONGEST_JSON = 1e8;
/** Bytes that are read at a time. */
const SLICE = 2 ** 23;
const KIND_OF = /** @type {Record<string, Kind>} */ ({ F32: "float32", F16: "float16", BF16: "bfloat16" });
/** Far above any model. */
const MOST_LAYERS = 512;

/** A value of a file in a sentence. @param {unknown} value */
function shown(value) {
  return String(JSON.stringify(value)).slice(0, 80);
}

/** @param {Json} raw @param {string} name @param {string} expected */
function refuse(raw, name, expected) {
  return new Error(`config.json: ${name} is ${shown(raw[name])}; expected ${expected}`);
}

/** @param {Files} files @param {string} name @returns {Promise<Json>} */
async function jsonOf(files, name) {
  const file = files.get(name);
  if (!file) throw new Error(`there is no ${name} in the folder`);
  if (file.size > LONGEST_JSON) throw new Error(`${name} has ${file.size} bytes; expected at most ${LONGEST_JSON}`);
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(`${name} is not JSON`);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error(`${name} is not a JSON object`);
  return found;
}

const own = (/** @type {object} */ one, /** @type {string} */ name) => Object.hasOwn(one, name);

/** What values a field may have, and how they are called. @type {Record<string, [(value: any, field: Json) => boolean, string]>} */
const TYPES = {
  whole: [(value, { least }) => Number.isSafeInteger(value) && value >= least, "a whole number"],
  boolean: [(value) => typeof value === "boolean", "true or false"],
  number: [(value) => typeof value === "number" && value > 0 && value <= 1e15, "a positive number"],
  share: [(value) => typeof value === "number" && value >= 0 && value <= 1, "a number from 0 to 1"],
  name: [(value, { known }) => typeof value === "string" && own(known, value), "the name of an activation that is known"],
};

/** @param {Json} raw @param {Json} field */
function fieldOf(raw, field) {
  if (field.type === "size") return sizeOf(raw, field);
  const [name] = field.names;
  const value = own(raw, name) ? raw[name] : field.default;
  if (value === null && own(field, "null")) return field.null;
  const [fits, expected] = TYPES[field.type];
  if (!fits(value, field)) throw refuse({ [name]: value }, name, expected);
  return field.type === "name" ? field.known[value] : value;
}

/** @param {Json} raw @param {Json} field */
function sizeOf(raw, { names, default: usual }) {
  const given = names.filter((/** @type {string} */ name) => own(raw, name) && raw[name] !== null);
  for (const name of given) if (!TYPES.whole[0](raw[name], { least: 1 })) throw refuse(raw, name, "a positive whole number");
  if (given.some((/** @type {string} */ name) => raw[name] !== raw[given[0]])) throw new Error(`config.json: ${given.join(" and ")} are two names of one size and differ`);
  if (!given.length && usual === null) throw new Error(`config.json: ${names.join(" or ")} is missing`);
  return given.length ? raw[given[0]] : usual;
}

/** @param {Json} raw @param {string} name @param {string} type @param {any} usual @param {Json} [more] */
function valueOf(raw, name, type, usual, more = {}) {
  return fieldOf(raw, { type, names: [name], default: usual, least: 1, ...more });
}

/** A size in every layer that slides, 0 elsewhere. @param {number} layers @param {number | null} size @param {(layer: number) => boolean} slides */
function windowsOf(layers, size, slides) {
  return Array.from({ length: layers }, (_, layer) => (size !== null && slides(layer) ? size : 0));
}

/** What fields of config.json mean together, by the rules of viz/any_model.py. @type {Record<string, (raw: Json, said: Json, group: Json) => Json>} */
const RULES = {
  offset: (_, { pad_id, n_positions }) => ({ position_offset: pad_id + 1, n_positions: n_positions - pad_id - 1 }),
  scaled: (raw, { d_mlp, d_model }) => ({
    causal: true,
    d_mlp: d_mlp || 4 * d_model,
    query_scalar: valueOf(raw, "scale_attn_weights", "boolean", true) ? null : 1,
  }),
  window: (raw, { n_layers }, { usual }) => ({ windows: windowsOf(n_layers, valueOf(raw, "sliding_window", "whole", usual, { null: null }), () => true) }),
  windows(raw, { n_layers }, { by }) {
    const { size, slides } = SLIDING[by](raw);
    const types = raw.layer_types ?? Array.from({ length: n_layers }, (_, layer) => (slides(layer) ? "sliding_attention" : "full_attention"));
    const known = Array.isArray(types) && types.length === n_layers && types.every((one) => one === "full_attention" || one === "sliding_attention");
    if (!known) throw refuse(raw, "layer_types", "full_attention or sliding_attention for each layer");
    if (types.includes("sliding_attention") && size === null) throw refuse({ layer_types: types }, "layer_types", "full_attention, as sliding_window is turned off");
    return { windows: windowsOf(n_layers, size, (layer) => types[layer] === "sliding_attention") };
  },
  pooling: (raw) => ({ pooling: fieldOf(raw, { type: "name", names: ["classifier_pooling"], default: "cls", known: { cls: "first", mean: "mean" } }) }),
  turned(raw, said, { base, fraction, usualFraction }) {
    const objects = ["rope_scaling", "rope_parameters"].map((name) => objectOf(raw, name));
    const given = { ...objects.find((one) => Object.keys(one).length) };
    const nested = ["full_attention", "sliding_attention"].find((name) => own(given, name));
    if (nested) throw new Error(`config.json: rope_parameters has ${nested}; expected one set of parameters`);
    if (own(raw, "original_max_position_embeddings")) given.original_max_position_embeddings = raw.original_max_position_embeddings;
    const usual = { rope_theta: own(raw, base) ? raw[base] : 10000, ...(fraction && { partial_rotary_factor: own(raw, fraction) ? raw[fraction] : usualFraction }) };
    return rotaryOf({ ...usual, ...given }, said, Boolean(fraction));
  },
  turnedByType(raw, said, { bases, scaled }) {
    const parameters = objectOf(raw, "rope_parameters");
    const [rotary, local] = ["full_attention", "sliding_attention"].map((kind) => {
      const [name, base] = bases[kind];
      const scaling = scaled.includes(kind) ? objectOf(raw, "rope_scaling") : {};
      return rotaryOf({ rope_theta: own(raw, name) ? raw[name] : base, ...objectOf(parameters, kind), ...scaling }, said, false).rotary;
    });
    return { rotary, local_rotary: local };
  },
};

/** @param {Json} raw @param {string} name @returns {Json} */
function objectOf(raw, name) {
  const found = raw[name] ?? {};
  if (typeof found !== "object" || Array.isArray(found)) throw refuse(raw, name, "an object");
  return found;
}

/** The size of windows, and which layers have one where layer_types does not say it; by a field that says that. @type {Record<string, (raw: Json) => {size: number | null, slides: (layer: number) => boolean}>} */
const SLIDING = {
  max_window_layers(raw) {
    const first = valueOf(raw, "max_window_layers", "whole", 28, { least: 0 });
    const size = valueOf(raw, "use_sliding_window", "boolean", false) ? windowOf(raw) : (windowOf(raw), null);
    return { size, slides: (layer) => size !== null && layer >= first };
  },
  sliding_window: (raw) => ({ size: windowOf(raw), slides: (layer) => layer % 2 === 0 }),
  sliding_window_pattern(raw) {
    const every = valueOf(raw, "sliding_window_pattern", "whole", 6);
    return { size: windowOf(raw), slides: (layer) => (layer + 1) % every !== 0 };
  },
  global_attn_every_n_layers(raw) {
    const every = valueOf(raw, "global_attn_every_n_layers", "whole", 3);
    return { size: 2 * Math.floor(valueOf(raw, "local_attention", "whole", 128, { least: 0 }) / 2) + 1, slides: (layer) => layer % every !== 0 };
  },
};

/** @param {Json} raw @returns {number | null} */
function windowOf(raw) {
  return valueOf(raw, "sliding_window", "whole", 4096, { null: null });
}

/** @param {Json} given @param {Json} said @param {boolean} partial */
function rotaryOf(given, said, partial) {
  const scaling = given.rope_type ?? given.type ?? "default";
  if (!["default", "linear", "llama3"].includes(scaling)) throw refuse({ rope_type: scaling }, "rope_type", "default, linear or llama3");
  const share = valueOf(given, "partial_rotary_factor", "number", 1);
  if (share > 1 || (share !== 1 && !partial)) throw refuse(given, "partial_rotary_factor", "1, or less where the family has that");
  const base = valueOf(given, "rope_theta", "number", null);
  const width = Math.floor((said.d_head || Math.floor(said.d_model / said.n_heads)) * share);
  if (width < 2 || width % 2 || base <= 1) throw refuse({ rope_theta: base, turned: width }, base <= 1 ? "rope_theta" : "turned", "a number above 1, and an even number of dimensions that are turned");
  const factor = scaling === "default" ? 1 : valueOf(given, "factor", "number", null);
  if (factor < 1) throw refuse(given, "factor", "a number from 1 on");
  const plain = Array.from({ length: width / 2 }, (_, i) => base ** (-2 * i / width));
  const linear = scaling === "linear";
  return {
    n_positions: linear ? Math.floor(said.n_positions * factor) : said.n_positions,
    rotary: { amplitude: 1, frequencies: scaling === "llama3" ? slowed(plain, factor, given, said) : plain.map((one) => one / (linear ? factor : 1)) },
  };
}

/** Llama 3.1: slow pairs are slowed, fast ones are not. @param {number[]} frequencies @param {number} factor @param {Json} given @param {Json} said */
function slowed(frequencies, factor, given, said) {
  const original = valueOf(given, "original_max_position_embeddings", "whole", said.n_positions);
  const [low, high] = ["low_freq_factor", "high_freq_factor"].map((name) => valueOf(given, name, "number", null));
  if (high <= low) throw refuse(given, "high_freq_factor", "a number above low_freq_factor");
  return frequencies.map((frequency) => {
    const kept = Math.min(1, Math.max(0, (original * frequency / (2 * Math.PI) - low) / (high - low)));
    return frequency * (kept + (1 - kept) / factor);
  });
}

/** Throws for a field that is not what the engine computes. @param {Json} raw @param {Json} table */
function checkContract(raw, table) {
  for (const [name, { allowed, reason }] of Object.entries(table.refused)) {
    const fits = (/** @type {any} */ one) => JSON.stringify(one) === JSON.stringify(raw[name]);
    if (own(raw, name) && !allowed.some(fits)) throw new Error(`${refuse(raw, name, allowed.map(shown).join(" or ")).message}: ${reason}`);
  }
  const code = Object.keys(raw.auto_map ?? {}).find((name) => name.includes("Model"));
  if (code) throw new Error(`config.json: auto_map names code of its own for ${shown(code)}, which is not run here`);
}

/** @param {Json} raw @param {Json} table @param {string[]} known */
function taskOf(raw, { classes }, known) {
  const named = raw.architectures ?? [];
  if (!Array.isArray(named)) throw refuse(raw, "architectures", "a list");
  if (!named.length) return "none";
  const task = typeof named[0] === "string" && own(classes, named[0]) ? classes[named[0]] : null;
  if (!known.includes(task)) throw refuse(raw, "architectures", `one of ${Object.keys(classes).filter((name) => known.includes(classes[name])).join(", ")}`);
  return task;
}

/** @param {Json} raw @returns {string[]} */
function labelsOf(raw) {
  const names = raw.id2label;
  if (!names) return Array.from({ length: valueOf(raw, "num_labels", "whole", 2) % 2 ** 20 }, (_, i) => `LABEL_${i}`);
  const count = typeof names === "object" && !Array.isArray(names) ? Object.keys(names).length : 0;
  const found = Array.from({ length: count }, (_, i) => names[i]);
  if (!count || found.some((name) => typeof name !== "string")) throw refuse(raw, "id2label", "a name for each class number, from 0 on");
  return found;
}

/** The choices of a model by their names in Python's Config. @param {Json} raw @param {Tables} tables @returns {Json} */
function choicesOf(raw, { families, tasks }) {
  const type = raw.model_type;
  if (typeof type !== "string" || !own(families, type)) throw refuse(raw, "model_type", `one of ${Object.keys(families).join(", ")}`);
  const table = families[type];
  checkContract(raw, table);
  const said = Object.fromEntries(Object.entries(table.fields).map(([ours, field]) => [ours, fieldOf(raw, field)]));
  if (said.n_layers > MOST_LAYERS) throw new Error(`config.json says ${said.n_layers} layers; expected at most ${MOST_LAYERS}`);
  const found = { ...table.defaults, ...said };
  for (const group of table.groups) Object.assign(found, RULES[group.rule](raw, said, group));
  const { n_heads: heads, d_model: width } = found;
  if (!found.d_head && width % heads) throw new Error(`config.json: ${heads} heads do not divide a width of ${width}`);
  found.d_head ||= width / heads;
  found.n_kv_heads ||= heads;
  found.d_embed ||= width;
  found.n_layer_groups ||= found.n_layers;
  if (found.n_layer_groups > found.n_layers) throw refuse(raw, "num_hidden_groups", "at most one group a layer");
  if (heads % found.n_kv_heads) throw new Error(`config.json: ${heads} heads cannot share ${found.n_kv_heads} key-value heads evenly`);
  if (!(found.n_positions >= 1)) throw refuse(raw, "max_position_embeddings", "room for a token");
  const problem = raw.problem_type ?? null;
  found.task = taskOf(raw, table, tasks);
  if (problem !== null && problem !== "single_label_classification") throw refuse(raw, "problem_type", "single_label_classification");
  const decodes = found.norm_place !== "after" && found.continues;
  found.projects ||= found.d_embed !== width;
  return { ...found, family: table.family, labels: labelsOf(raw), generates: decodes && found.task === "causal-lm", reads: decodes ? "last" : found.pooling };
}

/** What the engine reads of a model's config, as viz/live.py writes it. @param {Json} raw @param {Tables} tables @param {string} name @returns {{config: Config, choices: Json}} */
export function configOf(raw, tables, name) {
  const choices = choicesOf(raw, tables);
  const layers = [...Array(choices.n_layers).keys()];
  const window = (/** @type {number} */ size) => (!size ? null : choices.causal ? [size - 1, 0] : [Math.floor((size - 1) / 2), Math.floor((size - 1) / 2)]);
  const windows = choices.windows.map(window);
  const scale = layers.map((layer) => (choices.query_scalar ?? choices.d_head) ** -0.5 / (choices.scale_by_layer ? layer + 1 : 1));
  const head = choices.of_vocabulary ?? (choices.head_activation || choices.activation);
  const turns = layers.map((layer) => (windows[layer] && choices.local_rotary) || choices.rotary);
  const rotary = [...new Map(turns.map((one) => [JSON.stringify(one), one])).values()];
  const embedScale = choices.embed_scaled ? Math.fround(Math.sqrt(choices.d_model)) : 1;
  return {
    choices,
    config: /** @type {Config} */ ({
      .../** @type {any} */ (choices),
      name,
      head_activation: head,
      embed_scale: embedScale,
      scale,
      soft_cap: choices.attention_soft_cap ?? undefined,
      windows: windows.some(Boolean) ? windows : undefined,
      rotary: choices.rotary ? rotary : undefined,
      turned: choices.rotary ? turns.map((one) => rotary.findIndex((other) => JSON.stringify(one) === JSON.stringify(other))) : undefined,
      quantities: quantitiesOf(choices, tables),
      built: builtOf(choices, head, embedScale),
    }),
  };
}

/** As `built_of` of viz/live.py. @param {Json} choices @param {string} head @param {number} embedScale @returns {Json} */
function builtOf(choices, head, embedScale) {
  return {
    norm: choices.norm_place,
    normKind: choices.norm,
    plusOne: choices.norm_plus_one,
    firstNorm: choices.first_norm,
    eps: choices.norm_eps,
    parallel: choices.parallel,
    keyHeads: choices.n_kv_heads,
    queryKeyNorm: choices.query_key_norm,
    rotary: Boolean(choices.rotary),
    gated: choices.gated,
    activation: choices.activation,
    headActivation: head,
    embedScale,
    positions: choices.positions === "learned",
    positionOffset: choices.position_offset,
    segments: choices.n_segments > 0,
    embedNorm: choices.embed_norm,
    embedProject: choices.projects,
    finalNorm: choices.final_norm,
    transform: !choices.generates,
    logitSoftCap: choices.logit_soft_cap,
  };
}

/** As `editable` of viz/engine_edits.py. @param {Json} choices @param {Tables} tables @returns {Config["quantities"]} */
function quantitiesOf(choices, { quantities, refusedChanges }) {
  const there = /** @type {Json} */ ({ query_unrotated: choices.rotary, key_unrotated: choices.rotary, mlp_gate: choices.gated });
  const words = ["masked-lm", "pre-training", "causal-lm"].includes(choices.task);
  const classes = choices.task === "sequence-classification";
  const sizes = /** @type {Json} */ ({
    head: choices.n_heads, kv_head: choices.n_kv_heads, d_head: choices.d_head, d_model: choices.d_model, d_mlp: choices.d_mlp,
    vocab: words ? choices.vocab_size : classes ? choices.labels.length : 0,
  });
  const found = quantities.filter((/** @type {[string, string[]]} */ [name]) => !own(there, name) || there[name]).map((/** @type {[string, string[]]} */ [name, axes]) => {
    const matrix = name === "scores" || name === "probs";
    const refused = [...(matrix ? ["mean"] : []), ...(name === "scores" ? [] : ["hide"])].map((change) => [change, refusedChanges[change].replace("{}", name)]);
    const places = {
      layer: name === "embed" || name === "logits" ? 0 : choices.n_layers,
      head: sizes[axes.find((axis) => axis === "head" || axis === "kv_head") ?? ""] ?? 0,
      position: name === "logits" && classes ? 0 : null,
      key: axes.includes("key") ? null : 0,
      neuron: sizes[axes[axes.length - 1]] ?? 0,
    };
    return [name, { axes, places, refused: Object.fromEntries(refused.sort()) }];
  });
  return Object.fromEntries(found);
}

/** The shape of a weight and whether a bias stands beside it, by its name below body.groups.N. @param {Json} c  choices @returns {Record<string, [number[], boolean]>} */
function shapesOfLayer(c) {
  const [queries, keys] = [c.n_heads * c.d_head, c.n_kv_heads * c.d_head];
  const norm = /** @type {[number[], boolean]} */ ([[c.d_model], c.norm_bias]);
  const ofWidth = c.query_key_norm === "width";
  return {
    "attention.query": [[queries, c.d_model], c.query_bias],
    "attention.key": [[keys, c.d_model], c.query_bias],
    "attention.value": [[keys, c.d_model], c.query_bias],
    "attention.output": [[c.d_model, queries], c.output_bias],
    "attention.query_norm": [[ofWidth ? queries : c.d_head], c.norm_bias],
    "attention.key_norm": [[ofWidth ? keys : c.d_head], c.norm_bias],
    "mlp.gate": [[c.d_mlp, c.d_model], c.mlp_bias],
    "mlp.up": [[c.d_mlp, c.d_model], c.mlp_bias],
    "mlp.down": [[c.d_model, c.d_mlp], c.mlp_bias],
    attention_norm: norm,
    mlp_norm: norm,
    attention_output_norm: norm,
    mlp_output_norm: norm,
  };
}

/** Of body and head. @param {Json} c  choices @returns {Record<string, [number[], boolean]>} */
function shapesOutside(c) {
  const classes = c.task === "sequence-classification";
  const width = c.narrow_head && !classes ? c.d_embed : c.d_model;
  return {
    "body.word": [[c.vocab_size, c.d_embed], false],
    "body.position": [[c.n_positions + c.position_offset, c.d_embed], false],
    "body.segment": [[c.n_segments, c.d_embed], false],
    "body.embed_norm": [[c.d_embed], c.norm_bias],
    "body.final_norm": [[c.d_model], c.norm_bias],
    ...(c.projects && { "body.embed_project": [[c.d_model, c.d_embed], true] }),
    ...(classes && !c.first_activation && c.norm_place === "after" && { "body.pooler": [[c.d_model, c.d_model], true] }),
    "head.transform": [[width, c.d_model], c.head_bias],
    "head.norm": [[width], c.norm_bias],
    "head.decoder": [[c.vocab_size, width], !c.generates && c.decoder_bias],
    "head.classifier": [[c.labels.length, c.d_model], c.reads !== "last"],
  };
}

/** The weights that a model has, and where. @param {Json} choices @param {Json} names  of the family @returns {Wanted[]} */
function wantedOf(choices, names) {
  /** @type {Wanted[]} */
  const found = [];
  const add = (/** @type {string} */ ours, /** @type {string} */ theirs, /** @type {[number[], boolean]} */ [shape, bias], part = /** @type {Part | null} */ (null), turned = false) => {
    const named = (/** @type {string} */ kind) => (/\.(weight|bias)$/.test(theirs) ? theirs : `${theirs}.${kind}`);
    if (!ours.endsWith(".bias")) found.push({ ours: ours.endsWith(".weight") ? ours : `${ours}.weight`, names: [named("weight")], shape, turned: turned && shape.length > 1, part });
    if (bias && !ours.endsWith(".weight")) found.push({ ours: ours.endsWith(".bias") ? ours : `${ours}.bias`, names: [named("bias")], shape: shape.slice(0, 1), turned: false, part });
  };
  const outside = shapesOutside(choices);
  const ofTask = names.heads[choices.task] ?? {};
  for (const [holder, table] of [["body", names.body], ["head", ofTask]]) {
    for (const [name, theirs] of Object.entries(table)) {
      const shape = outside[`${holder}.${name.replace(/\.(weight|bias)$/, "")}`];
      if (shape && shape[0][0]) add(`${holder}.${name}`, theirs, shape);
    }
  }
  const shapes = shapesOfLayer(choices);
  const parts = partsOf(names, shapes, choices);
  for (let layer = 0; layer < choices.n_layer_groups; layer += 1) {
    for (const [ours, theirs] of names.within) if (layer || choices.first_norm || ours !== "attention_norm") add(`body.groups.${layer}.${ours}`, `${names.layer.replace("{}", layer)}.${theirs}`, shapes[ours], parts[ours] ?? null, names.conv1d);
  }
  return found.map((one) => ({ ...one, names: alsoNamed(names, one.names[0], choices.tied) }));
}

/** Modules with one name lie in one tensor, in order. @param {Json} names @param {Record<string, [number[], boolean]>} shapes @param {Json} choices @returns {Record<string, Part>} */
function partsOf({ within, byHead }, shapes, choices) {
  const blocks = byHead ? choices.n_heads : 1;
  /** @type {Record<string, Part>} */
  const parts = {};
  for (const [ours, theirs] of within) {
    const sharing = within.filter((/** @type {string[]} */ one) => one[1] === theirs).map((/** @type {string[]} */ one) => one[0]);
    if (sharing.length === 1) continue;
    const rows = sharing.map((/** @type {string} */ one) => shapes[one][0][0] / blocks);
    const sum = (/** @type {number[]} */ some) => some.reduce((a, b) => a + b, 0);
    const place = sharing.indexOf(ours);
    parts[ours] = { start: sum(rows.slice(0, place)), rows: rows[place], block: sum(rows) };
  }
  return parts;
}

/** The names a tensor may have; an untied decoder has a bias of its own, which then counts. @param {Json} names @param {string} name @param {boolean} tied */
function alsoNamed({ aliases, live }, name, tied) {
  if (own(live, name)) return [name, live[name]];
  if (!own(aliases, name)) return [name];
  return tied ? [name, aliases[name]] : [aliases[name], name];
}

/** The tensors of a safetensors file, none of them read. @param {string} where @param {Blob} file @returns {Promise<Tensor[]>} */
async function tensorsOf(where, file) {
  const length = file.size < 8 ? 0 : Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
  if (length < 2 || length > Math.min(file.size - 8, LONGEST_HEADER)) throw new Error(`${where} is not a whole safetensors file: it says that its header has ${length} bytes, and it has ${file.size}`);
  /** @type {Json} */
  const header = await jsonOf(new Map([[`the header of ${where}`, file.slice(8, 8 + length)]]), `the header of ${where}`);
  return Object.entries(header).flatMap(([name, about]) => {
    if (name === "__metadata__") return [];
    const { dtype, shape, data_offsets: place } = about ?? {};
    const whole = (/** @type {any} */ list, /** @type {number | null} */ count) => Array.isArray(list) && (count === null || list.length === count) && list.every((one) => Number.isSafeInteger(one) && one >= 0);
    if (typeof dtype !== "string" || !whole(shape, null) || !whole(place, 2) || place[1] < place[0]) throw new Error(`${where}: the entry of ${shown(name)} is damaged`);
    if (8 + length + place[1] > file.size) throw new Error(`${where} ends before ${shown(name)} does; fetch it again`);
    return [{ name, dtype, shape, data: file.slice(8 + length + place[0], 8 + length + place[1]) }];
  });
}

/** The tensors of all weight files. @param {Files} files @returns {Promise<Tensor[]>} */
async function allTensors(files) {
  const index = "model.safetensors.index.json";
  if (!files.has(index)) {
    const file = files.get("model.safetensors");
    if (!file) throw new Error("there is no model.safetensors in the folder");
    return tensorsOf("model.safetensors", file);
  }
  const map = (await jsonOf(files, index)).weight_map;
  if (typeof map !== "object" || map === null) throw new Error(`${index} has no weight_map`);
  const found = [];
  for (const name of new Set(Object.values(map))) {
    const file = typeof name === "string" ? files.get(name) : undefined;
    if (!file) throw new Error(`${index} names ${shown(name)}, which is not in the folder`);
    found.push(...(await tensorsOf(/** @type {string} */ (name), file)));
  }
  return found;
}

/** A name without the family's prefix and without TensorFlow's names. @param {string} name @param {Json} names */
function modern(name, { prefixes }) {
  const usual = name.replace(/\.gamma$/, ".weight").replace(/\.beta$/, ".bias");
  const prefix = prefixes.find((/** @type {string} */ one) => usual.startsWith(`${one}.`));
  return prefix ? usual.slice(prefix.length + 1) : usual;
}

/** Throws for a tensor that is no weight of the model: it might change its numbers. @param {Iterable<string>} names @param {Wanted[]} wanted @param {Json} family */
function checkNames(names, wanted, family) {
  const { names: { heads, body, unused, aliases, live } } = family;
  const known = new Set([...wanted.flatMap((one) => one.names), ...Object.values(aliases), ...Object.values(live)]);
  for (const theirs of [...Object.values(heads).flatMap((head) => Object.values(head)), body.pooler]) {
    for (const end of ["", ".weight", ".bias"]) known.add(`${theirs}${end}`);
  }
  const patterns = unused.map((/** @type {string} */ one) => new RegExp(one));
  for (const name of names) {
    if (!known.has(name) && !patterns.some((/** @type {RegExp} */ one) => one.test(name))) throw new Error(`the weights have ${shown(name)}, which a ${family.family} model does not have`);
  }
}

/** Where each stored tensor goes. @param {Tensor[]} tensors @param {Wanted[]} wanted @param {Json} family @param {boolean} tied @returns {Map<Tensor, Wanted[]>} */
function placesOf(tensors, wanted, family, tied) {
  const byName = new Map();
  for (const tensor of tensors) {
    const name = modern(tensor.name, family.names);
    if (byName.has(name)) throw new Error(`the weights have ${shown(name)} twice`);
    byName.set(name, tensor);
  }
  checkNames(byName.keys(), wanted, family);
  const places = new Map();
  for (const one of wanted) {
    const tensor = one.names.map((name) => byName.get(name)).find(Boolean);
    if (!tensor && one.ours === "head.decoder.weight" && tied) continue;
    if (!tensor) throw new Error(`the weights have no ${one.names[0]}`);
    checkTensor(tensor, one);
    places.set(tensor, [...(places.get(tensor) ?? []), one]);
  }
  return places;
}

/** @param {Tensor} tensor @param {Wanted} wanted */
function checkTensor({ name, dtype, shape, data }, { shape: [rows, ...rest], turned, part }) {
  const stored = [part ? rows / part.rows * part.block : rows, ...rest];
  const expected = turned ? stored.reverse() : stored;
  if (expected.join() !== shape.join()) throw new Error(`${shown(name)} has the shape ${shape.join(" x ")}; expected ${expected.join(" x ")}, as config.json says`);
  if (!own(KIND_OF, dtype)) throw new Error(`${shown(name)} holds ${dtype.slice(0, 20)}; expected float32, float16 or bfloat16`);
  const bytes = KINDS[KIND_OF[dtype]].BYTES_PER_ELEMENT * shape.reduce((a, b) => a * b, 1);
  if (data.size !== bytes) throw new Error(`${shown(name)} has ${data.size} bytes; expected ${bytes}`);
}

/** Throws where a number is NaN or infinite. @param {string} name @param {Kind} kind @param {Stored} stored */
function checkFinite(name, kind, stored) {
  const exponent = kind === "float32" ? 0x7f800000 : kind === "float16" ? 0x7c00 : 0x7f80;
  const bits = kind === "float32" ? new Uint32Array(stored.buffer, stored.byteOffset, stored.length) : stored;
  for (let i = 0; i < bits.length; i += 1) if ((bits[i] & exponent) === exponent) throw new Error(`${shown(name)} holds values that are NaN or infinite`);
}

/**
 * The weights of a model, read a slice at a time.
 *
 * @param {Map<Tensor, Wanted[]>} places
 * @param {(share: number) => void} progress
 */
async function weightsOf(places, progress) {
  const weights = new Weights();
  const total = [...places.keys()].reduce((sum, { data }) => sum + data.size, 0);
  let read = 0;
  for (const [{ name, dtype, shape, data }, all] of places) {
    const kind = KIND_OF[dtype];
    const rowBytes = data.size / shape[0];
    const rows = Math.max(1, Math.floor(SLICE / rowBytes));
    for (let first = 0; first < shape[0]; first += rows) {
      const bytes = await data.slice(first * rowBytes, Math.min(shape[0], first + rows) * rowBytes).arrayBuffer();
      const stored = new KINDS[kind](bytes);
      checkFinite(name, kind, stored);
      for (const one of all) put(weights, one, kind, stored, first, shape);
      // Frees it now: browsers let dozens of megabytes of such slices pile up.
      /** @type {any} */ (bytes).transfer?.(0);
    }
    read += data.size;
    progress(read / total);
  }
  return weights;
}

/** Puts a slice, which begins at this row of the stored tensor, where it belongs. @param {Weights} weights @param {Wanted} wanted @param {Kind} kind @param {Stored} stored @param {number} first @param {number[]} shape */
function put(weights, { ours, shape: own, turned, part }, kind, stored, first, shape) {
  if (own.length === 1) return void putVector(weights, ours, own[0], single(kind, stored), first, part);
  const matrix = weights.matrices.get(ours) ?? weights.matrix(ours, kind, own);
  const width = shape[1];
  if (turned) return matrix.putColumns(first, stored, width, part?.start ?? 0);
  if (!part) return matrix.put(first, stored);
  for (let row = first, from = 0; from < stored.length; row += 1, from += width) {
    const place = placeIn(part, row);
    if (place !== null) matrix.put(place, stored.subarray(from, from + width));
  }
}

/** @param {Weights} weights @param {string} ours @param {number} size @param {Float32Array} values @param {number} first @param {Part | null} part */
function putVector(weights, ours, size, values, first, part) {
  const vector = weights.vectors.get(ours) ?? new Float32Array(size);
  weights.vectors.set(ours, vector);
  values.forEach((value, i) => {
    const place = part ? placeIn(part, first + i) : first + i;
    if (place !== null) vector[place] = value;
  });
}

/** The row of ours that a stored row is; null where it is of another weight. @param {Part} part @param {number} row */
function placeIn({ start, rows, block }, row) {
  const within = (row % block) - start;
  return within >= 0 && within < rows ? Math.floor(row / block) * rows + within : null;
}

/** The parts of a tokenizer.json that tokens.js has. */
const KNOWN = {
  normalizer: ["BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend", "Replace", "Sequence", "Strip", "StripAccents"],
  pre_tokenizer: ["BertPreTokenizer", "ByteLevel", "Metaspace", "Sequence", "Split", "WhitespaceSplit"],
  post_processor: ["BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"],
};

/** @param {Files} files @param {Tables} tables @param {number} rows  of the word table @returns {Promise<Vocabulary>} */
async function vocabularyOf(files, { roles }, rows) {
  const tokenizer = await jsonOf(files, "tokenizer.json");
  checkTokenizer(tokenizer);
  const settings = /** @type {Json} */ ({});
  for (const name of ["special_tokens_map.json", "tokenizer_config.json"]) if (files.has(name)) Object.assign(settings, await jsonOf(files, name));
  const ids = new Map([...idsOf(tokenizer.model), ...tokenizer.added_tokens.map((/** @type {Json} */ one) => [one.content, one.id])]);
  const special = new Set(tokenizer.added_tokens.filter((/** @type {Json} */ one) => one.special).map((/** @type {Json} */ one) => one.id));
  const found = /** @type {Json} */ ({});
  for (const [role, usual] of roles) {
    const declared = settings[`${role}_token`];
    const named = declared ? [declared.content ?? declared] : usual;
    const content = named.find((/** @type {any} */ one) => ids.has(one));
    if (content === undefined) continue;
    found[role] = ids.get(content);
    const added = { single_word: false, lstrip: false, rstrip: false, normalized: false, ...(typeof declared === "object" ? declared : {}) };
    if (!special.has(found[role])) tokenizer.added_tokens.push({ ...added, id: found[role], content, special: true });
    special.add(found[role]);
  }
  const size = [...ids.values()].reduce((most, id) => Math.max(most, id + 1), 0);
  if (size > rows) throw new Error(`tokenizer.json has ${size} ids and the model has rows for ${rows}; take both from one checkpoint`);
  const marks = new Set(Object.entries(found).filter(([role]) => role !== "mask" && role !== "unk").map(([, id]) => id));
  const structural = [...special].filter((id) => marks.has(id) || (id !== found.mask && id !== found.unk));
  return { tokenizer, structural, mask: found.mask ?? null, size };
}

/** Throws for a tokenizer of another kind. @param {Json} tokenizer */
function checkTokenizer({ model, added_tokens: added, ...parts }) {
  const type = model?.type ?? (model?.merges ? "BPE" : undefined);
  if (!["BPE", "Unigram", "WordPiece"].includes(type)) throw new Error(`tokenizer.json is a ${shown(type)} tokenizer; expected BPE of bytes, Unigram or WordPiece`);
  const level = JSON.stringify([parts.pre_tokenizer]).includes('"ByteLevel"');
  const named = (/** @type {number} */ byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
  const bytes = model.byte_fallback ? [...Array(256).keys()].every((byte) => own(model.vocab ?? {}, named(byte))) : level;
  if (type === "BPE" && !bytes) throw new Error("tokenizer.json is a BPE tokenizer that does not have all bytes; expected one of bytes");
  if (model.dropout) throw new Error(`tokenizer.json: dropout is ${shown(model.dropout)}; expected none`);
  const listed = type !== "Unigram" || (Array.isArray(model.vocab) && model.vocab.every((/** @type {any} */ one) => typeof one?.[0] === "string" && Number.isFinite(one[1])) && own(model.vocab, model.unk_id));
  const entries = listed ? idsOf({ vocab: model.vocab ?? {} }) : [];
  if (new Set(entries.map(([piece]) => piece)).size < entries.length || !entries.length || !Array.isArray(added) || ![...entries.map(([, id]) => id), ...added.map((one) => one?.id)].every((id) => Number.isSafeInteger(id) && id >= 0)) throw new Error("tokenizer.json has a vocabulary that is damaged");
  for (const [name, known] of Object.entries(KNOWN)) checkParts(name, /** @type {Json} */ (parts)[name], known);
}

/** @param {string} name @param {Json | null} part @param {string[]} known */
function checkParts(name, part, known) {
  if (!part) return;
  if (!known.includes(part.type)) throw new Error(`tokenizer.json: the ${name} is ${shown(part.type)}; expected ${known.join(", ")}`);
  if (part.type === "Precompiled") precompiled(part.precompiled_charsmap);
  const inner = part.normalizers ?? part.pretokenizers ?? part.processors;
  if (inner?.some?.((/** @type {Json} */ one) => one?.prepend_scheme === "first")) throw new Error('tokenizer.json: prepend_scheme is "first" behind other steps; expected "always" or "never"');
  if (Array.isArray(inner)) for (const one of inner) checkParts(name, one, known);
}

/**
 * The model of a folder. Throws an Error whose message is one sentence for a folder that is not read.
 *
 * @param {Files} files
 * @param {Tables} tables
 * @param {string} name  of the folder
 * @param {(share: number) => void} progress  how much of the weights is read
 */
export async function readFolder(files, tables, name, progress) {
  const raw = await jsonOf(files, "config.json");
  const { config, choices } = configOf(raw, tables, name);
  const vocabulary = await vocabularyOf(files, tables, config.vocab_size);
  const family = tables.families[raw.model_type];
  const wanted = wantedOf(choices, family.names);
  const places = placesOf(await allTensors(files), wanted, family, choices.tied);
  return { config, vocabulary, weights: await weightsOf(places, progress) };
}
