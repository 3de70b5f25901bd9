/**
 * The list of edits: one of each place, in the order in which they were made; in words, and as the Python that gives
 * the same numbers.
 *
 * @import { Edit } from "../engine/engine.js"
 */

import { translated } from "../core/text/translated.js";
import { textsOf } from "./asked.js";

/** @type {("layer" | "head" | "position" | "key" | "neuron")[]} */
const AXES = ["layer", "head", "position", "key", "neuron"];

/** Where an edit acts; two edits of one place do not stand beside each other. @param {Edit} edit */
export function placeOf(edit) {
  return [edit.quantity, ...AXES.map((axis) => edit[axis] ?? "")].join(" ");
}

/**
 * @param {Edit[]} edits
 * @param {Edit} edit
 * @returns {Edit | undefined}  the edit of the same place
 */
export function editAt(edits, edit) {
  return edits.find((other) => placeOf(other) === placeOf(edit));
}

/** The edits with one more, or with another in the place of one. @param {Edit[]} edits @param {Edit} edit */
export function withEdit(edits, edit) {
  const at = edits.findIndex((other) => placeOf(other) === placeOf(edit));
  return at < 0 ? [...edits, edit] : edits.map((other, i) => (i === at ? edit : other));
}

/** @param {Edit[]} edits @param {Edit} edit */
export function withoutEdit(edits, edit) {
  return edits.filter((other) => placeOf(other) !== placeOf(edit));
}

/**
 * What a second click does: takes the same edit back, or puts another change in its place.
 *
 * @param {Edit[]} edits
 * @param {Edit} edit
 */
export function toggled(edits, edit) {
  return editAt(edits, edit)?.change === edit.change ? withoutEdit(edits, edit) : withEdit(edits, edit);
}

/**
 * The edit that cuts an edge: in one head, in all heads of a layer, or in all layers.
 *
 * @param {{layer: number, head: number, position: number}} place
 * @param {number} key
 * @param {"head" | "layer" | "all"} reach
 * @returns {Edit}
 */
export function edgeOf({ layer, head, position }, key, reach) {
  const where = reach === "all" ? {} : { layer, ...(reach === "head" && { head }) };
  return { quantity: "scores", change: "hide", ...where, position, key };
}

/**
 * Where each token of a text is after the text was changed in one place; null: it is gone. Tokens
 * before and behind the change are the same.
 *
 * @param {string[]} before
 * @param {string[]} after
 * @returns {(number | null)[]}
 */
export function movedTokens(before, after) {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  return before.map((_, i) => {
    if (i < start) return i;
    return i >= before.length - end ? i + after.length - before.length : null;
  });
}

/**
 * The edits at the tokens' new places, without those of tokens that are gone.
 *
 * @param {Edit[]} edits
 * @param {(number | null)[]} moved
 */
export function movedEdits(edits, moved) {
  return edits.flatMap((edit) => {
    const [position, key] = [edit.position ?? null, edit.key ?? null].map((at) => (at === null ? null : moved[at] ?? -1));
    if (position === -1 || key === -1) return [];
    return [{ ...edit, ...(position !== null && { position }), ...(key !== null && { key }) }];
  });
}

/** @type {Record<Edit["change"], string>} */
export const CHANGES = { zero: "to zero", mean: "to its mean", text: "as in the other text", set: "to", hide: "hidden" };

/**
 * An edit in words.
 *
 * @param {Edit} edit
 * @param {(position: number) => string} token  a token in words
 */
export function editInWords(edit, token) {
  const { quantity, change, value } = edit;
  const [layer, head, position, key] = [edit.layer ?? null, edit.head ?? null, edit.position ?? null, edit.key ?? null];
  const where = [layer === null ? "every layer" : `layer ${layer}`, ...(head === null ? [] : [`head ${head}`])].join(", ");
  const at = position === null ? "" : ` at “${token(position)}”`;
  if (quantity === "scores" && change !== "hide") {
    const looked = key === null ? "" : ` for “${token(key)}”`;
    return `Scores of ${where}${at}${looked} ${change === "set" ? `to ${Number(Number(value).toFixed(3))}` : CHANGES[change]}`;
  }
  if (quantity === "scores") {
    if (position === null && layer === null) return `“${token(Number(key))}” hidden from all tokens`;
    return `${capital(where)}: “${position === null ? translated`all` : token(position)}” cannot look at “${token(Number(key))}”`;
  }
  if (quantity === "probs") {
    const weight = `${Math.round(Number(value) * 1000) / 10}\u202f%`;
    return `${capital(where)}: “${token(Number(position))}” looks at “${token(Number(key))}” with ${weight}`;
  }
  const does = change === "set" ? `to ${value}` : CHANGES[change];
  if ((edit.neuron ?? null) !== null) return `Neuron ${edit.neuron} of ${where}${at} ${does}`;
  const names = /** @type {Record<string, string>} */ ({ z: head === null ? "All heads of" : "", attn_out: "Attention of", mlp_out: "MLP of" });
  const name = names[quantity] ?? `${quantity} of`;
  return `${capital(`${name} ${where}`.trim())}${at} ${does}`;
}

/** @param {string} text */
function capital(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/**
 * @typedef {object} Group  the edits of one point of a pass
 * @property {string} quantity
 * @property {number | null} layer  null: every layer
 * @property {number | null} head
 * @property {Edit[]} edits
 *
 * @typedef {{point: string, value: string, lines: string[]}} Written  lines: of the function it needs
 */

/** What a weight that is set does to its row, as the engine has it. */
const WITH_WEIGHT = `def set_weight(probs, query, key, weight):
    """Set the weight of one key; scale the others of its row so that they sum to 1."""
    row = probs[..., query, :]
    others = row.sum(-1) - row[..., key]
    row *= ((1 - weight) / others)[..., None]
    row[..., key] = weight`;

/**
 * @param {import("./asked.js").Asked} asked
 * @param {{model: string, layers: number}} about
 * @param {number[]} places  tokens whose predictions are printed
 */
export function pythonOf(asked, { model, layers }, places) {
  const groups = groupsOf(asked.edits, layers);
  const written = groups.map(writeGroup);
  const body = written.flatMap(({ lines }) => lines);
  const sources = written.map(({ value }) => value).concat(body).join("\n");
  const texts = textsOf(asked).map(literal).join(", ");
  const other = asked.other !== null && /\bother\b/.test(sources) ? [`other = model.trace(${literal(asked.other)})`] : [];
  const edits = written.map(({ point, value }) => `    ${point}${value},`);
  const names = ["hide", "mean", "replace", "zero"].filter((name) => new RegExp(`\\b${name}\\b`).test(written.map(({ value }) => value).join(" ")));
  return [
    ...(/\bmath\./.test(sources) ? ["import math", ""] : []),
    "import minibert",
    ...(names.length ? [`from minibert.trace.edit import ${names.join(", ")}`] : []),
    "",
    `model = minibert.load(${literal(model)})`,
    `before = model.trace(${texts})`,
    ...other,
    ...(/\bset_weight\(/.test(sources) ? ["", "", WITH_WEIGHT] : []),
    ...body,
    ...(body.length || /\bset_weight\(/.test(sources) ? ["", ""] : []),
    ...(edits.length ? ["edit = {", ...edits, "}", `after = model.trace(${texts}, edit=edit)`] : []),
    "",
    ...printed(edits.length > 0, places),
    "",
  ].join("\n");
}

/** @param {boolean} edited @param {number[]} places */
function printed(edited, places) {
  if (!places.length) return [`print(before[0].probs.shape)`];
  const runs = edited ? `(("before", before), ("after", after))` : `(("before", before),)`;
  return [
    `for name, trace in ${runs}:`,
    `    for position in (${places.join(", ")},):`,
    "        best = trace.logits[0, position].softmax(-1).topk(5)",
    "        words = [model.tokenizer.string(int(token)) for token in best.indices]",
    "        print(name, position, dict(zip(words, best.values.tolist())))",
  ];
}

/** JSON is Python here: a text in double quotes. @param {string} text */
function literal(text) {
  return JSON.stringify(text);
}

/**
 * The edits by the point they are made at; those of every layer stay one where no layer has others.
 *
 * @param {Edit[]} edits
 * @param {number} layers
 * @returns {Group[]}
 */
function groupsOf(edits, layers) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  const put = (/** @type {Edit} */ edit, /** @type {number | null} */ layer) => {
    const head = edit.head ?? null;
    const name = [edit.quantity, layer, head].join(" ");
    const group = groups.get(name) ?? { quantity: edit.quantity, layer, head, edits: [] };
    group.edits.push(edit);
    groups.set(name, group);
  };
  for (const edit of edits) {
    const same = edits.filter(({ quantity, head }) => quantity === edit.quantity && (head ?? null) === (edit.head ?? null));
    const whole = edit.quantity === "embed" || edit.quantity === "logits";
    const alike = same.every(({ layer }) => (layer ?? null) === null) && inOne(same) !== null;
    const places = (edit.layer ?? null) !== null || whole || alike ? [edit.layer ?? null] : [...Array(layers).keys()];
    for (const layer of places) put(edit, layer);
  }
  return [...groups.values()];
}

/** @param {Group} group @returns {Written} */
function writeGroup({ quantity, layer, head, edits }) {
  const parts = [literal(quantity), ...(layer === null ? [] : [layer]), ...(head === null ? [] : [head])];
  const value = inOne(edits);
  if (quantity === "embed" || quantity === "logits") return { point: `${literal(quantity)}: `, value: value ?? "", lines: [] };
  if (layer === null) {
    const point = `(${[literal(quantity), "layer", ...(head === null ? [] : [head])].join(", ")})`;
    return { point: `**{${point}: `, value: `${value} for layer in range(model.config.n_layers)}`, lines: [] };
  }
  if (value !== null) return { point: `(${parts.join(", ")}): `, value, lines: [] };
  const name = ["change", quantity, layer, ...(head === null ? [] : ["head", head])].join("_");
  const source = `[${head === null ? layer : `${layer}, ${head}`}].${quantity}`;
  const lines = edits.map((edit) => `    ${statement(edit, source)}`);
  return {
    point: `(${parts.join(", ")}): `,
    value: name,
    lines: ["", "", `def ${name}(${quantity}):`, ...lines, `    return ${quantity}`],
  };
}

/**
 * The edits of a point as a value that needs no function; null where it needs one.
 *
 * @param {Edit[]} edits
 * @returns {string | null}
 */
function inOne(edits) {
  const [{ change, position: first, neuron, key, quantity, value }] = edits;
  const position = first ?? null;
  if (edits.every((edit) => edit.change === "hide" && (edit.position ?? null) === position)) {
    const keys = edits.map((edit) => edit.key).join(", ");
    return `hide(${edits.length > 1 ? `[${keys}]` : keys}${position === null ? "" : `, positions=${position}`})`;
  }
  if (edits.length > 1 || (neuron ?? null) !== null || (key ?? null) !== null || (change === "set" && quantity === "probs")) return null;
  const at = position === null ? "" : `, positions=${position}`;
  if (change === "zero") return position === null ? "zero" : `zero.at(positions=${position})`;
  if (change === "mean") return `mean(over=before${at})`;
  if (change === "set") return `replace(${value}${at})`;
  // The texts may have different lengths, which only a whole quantity may not.
  return position === null ? "replace(other)" : null;
}

/**
 * One edit as a line of a function of the quantity.
 *
 * @param {Edit} edit
 * @param {string} source  the same quantity of a trace
 */
function statement({ quantity, change, position, key, neuron, value }, source) {
  const [row, last] = [position ?? ":", key ?? neuron ?? ":"];
  if (quantity === "probs" && change === "set") return `set_weight(probs, ${position}, ${key}, ${value})`;
  const target = `${quantity}[..., ${row}, ${last}]`;
  if (change === "hide") return `${target} = -math.inf`;
  if (change === "zero") return `${target} = 0`;
  if (change === "set") return `${target} = ${value}`;
  if (change === "text") return `${target} = other${source}[..., ${row}, ${last}]`;
  const whole = last === ":";
  const kept = row === ":" ? ", keepdim=True" : "";
  return `${target} = before${source}${whole ? "" : `[..., ${last}]`}.mean(${whole ? -2 : -1}${kept})`;
}
