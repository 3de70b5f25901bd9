/**
 * The list of edits: one of each place, in the order in which they were made.
 *
 * @typedef {import("../engine/engine.js").Edit} Edit
 */

/** @type {("layer" | "head" | "position" | "key" | "neuron")[]} */
const AXES = ["layer", "head", "position", "key", "neuron"];

/**
 * Where an edit acts; two edits of one place do not stand beside each other.
 *
 * @param {Edit} edit
 */
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

/**
 * The edits with one more, or with another in the place of one.
 *
 * @param {Edit[]} edits
 * @param {Edit} edit
 */
export function withEdit(edits, edit) {
  const at = edits.findIndex((other) => placeOf(other) === placeOf(edit));
  return at < 0 ? [...edits, edit] : edits.map((other, i) => (i === at ? edit : other));
}

/**
 * @param {Edit[]} edits
 * @param {Edit} edit
 */
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
const CHANGES = { zero: "to zero", mean: "to its mean", text: "as in the other text", set: "to", hide: "hidden" };

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
    return `${capital(where)}: “${position === null ? "all" : token(position)}” cannot look at “${token(Number(key))}”`;
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
