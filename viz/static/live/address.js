/**
 * What is asked for, in the page's address beside the state of the picture.
 *
 * @typedef {import("./asked.js").Asked} Asked
 * @typedef {import("../engine/engine.js").Edit} Edit
 */

import { askedOf, USUAL } from "./asked.js";

/** Names in the address; core/state/fields.js has none of them. */
const OWN = ["text", "second", "other", "edits", "temperature", "topk", "topp", "seed", "to", "heads-show", "place", "word", "exercise", "step"];
/** Characters of a text, and edits, that an address may bring. */
const [LONGEST, MOST] = [20000, 500];
/** @type {Edit["change"][]} */
const CHANGES = ["zero", "mean", "text", "set", "hide"];
const AXES = { layer: "L", head: "H", position: "P", key: "K", neuron: "N" };
const EDIT = /^([a-z][a-z_]{0,30})-([a-z]+)(?:-L(\d{1,4}))?(?:-H(\d{1,4}))?(?:-P(\d{1,6}))?(?:-K(\d{1,6}))?(?:-N(\d{1,6}))?(?:-V(-?\d+(?:\.\d+)?(?:e-?\d{1,2})?))?$/;

/**
 * An edit in a few letters: probs-set-L0-H2-P3-K4-V0.35.
 *
 * @param {Edit} edit
 */
export function writeEdit(edit) {
  const axes = Object.entries(AXES).flatMap(([axis, letter]) => {
    const at = edit[/** @type {keyof typeof AXES} */ (axis)];
    return at === undefined || at === null ? [] : [`${letter}${at}`];
  });
  const value = edit.value === undefined ? [] : [`V${edit.value}`];
  return [edit.quantity, edit.change, ...axes, ...value].join("-");
}

/**
 * @param {string} written
 * @returns {Edit | null}  null: no edit is written so
 */
export function readEdit(written) {
  const found = EDIT.exec(written);
  const change = CHANGES.find((one) => one === found?.[2]);
  if (!found || !change || (change === "set") !== (found[8] !== undefined)) return null;
  /** @type {Edit} */
  const edit = { quantity: found[1], change };
  Object.keys(AXES).forEach((axis, i) => {
    if (found[3 + i] !== undefined) edit[/** @type {keyof typeof AXES} */ (axis)] = Number(found[3 + i]);
  });
  return found[8] === undefined ? edit : { ...edit, value: Number(found[8]) };
}

/**
 * The address: what is asked for, then the state of the picture as it is.
 *
 * @param {Asked} asked
 * @param {string} picture  the frame's part
 */
export function writeAddress(asked, picture) {
  const { sampling } = asked;
  const all = new URLSearchParams();
  const put = (/** @type {string} */ name, /** @type {unknown} */ value, /** @type {unknown} */ usual = null) => {
    if (value !== usual) all.set(name, String(value));
  };
  put("text", asked.text);
  put("second", asked.second);
  put("other", asked.other);
  put("edits", asked.edits.map(writeEdit).join("*"), "");
  put("temperature", sampling.temperature, USUAL.temperature);
  put("topk", sampling.topK);
  put("topp", sampling.topP);
  put("seed", sampling.seed, USUAL.seed);
  put("to", asked.to, "zero");
  put("heads-show", asked.shade);
  put("place", asked.place);
  put("word", asked.word);
  return picture ? `${all}&${picture}` : String(all);
}

/** The part of an address that is about the picture. @param {string} hash */
export function pictureOf(hash) {
  const all = new URLSearchParams(hash.replace(/^#/, ""));
  for (const name of OWN) all.delete(name);
  return String(all);
}

/**
 * The exercise that is open, and its step, from 1; 0: none.
 *
 * @param {string} hash
 */
export function readExercise(hash) {
  const all = new URLSearchParams(hash.replace(/^#/, ""));
  const [exercise, step] = ["exercise", "step"].map((name) => (/^\d{1,2}$/.test(all.get(name) ?? "") ? Number(all.get(name)) : 0));
  return { exercise, step: Math.max(1, step) };
}

/**
 * What an address asks for; what no page writes so is passed over.
 *
 * @param {string} hash
 * @param {string} text  where it names none
 * @returns {Asked}
 */
export function readAddress(hash, text) {
  const all = new URLSearchParams(hash.replace(/^#/, ""));
  const words = (/** @type {string} */ name) => all.get(name)?.slice(0, LONGEST) ?? null;
  const number = (/** @type {string} */ name, /** @type {(value: number) => boolean} */ fits) => {
    const written = all.get(name);
    const value = written !== null && /^\d{1,9}(\.\d{1,9})?$/.test(written) ? Number(written) : NaN;
    return fits(value) ? value : null;
  };
  const whole = (/** @type {number} */ value) => Number.isInteger(value);
  const edits = (all.get("edits") ?? "").split("*", MOST).map(readEdit).filter((edit) => edit !== null);
  const to = all.get("to");
  const shade = all.get("heads-show");
  return {
    ...askedOf(words("text") ?? text),
    second: words("second"),
    other: words("other"),
    edits,
    sampling: {
      temperature: number("temperature", (value) => value >= 0 && value <= 10) ?? USUAL.temperature,
      topK: number("topk", (value) => whole(value) && value > 0),
      topP: number("topp", (value) => value > 0 && value <= 1),
      seed: number("seed", whole) ?? USUAL.seed,
    },
    to: to === "mean" || to === "text" ? to : "zero",
    shade: shade === "effect" || shade === "change" ? shade : null,
    place: number("place", whole),
    word: number("word", whole),
  };
}
