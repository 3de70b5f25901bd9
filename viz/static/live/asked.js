/**
 * What the reader asks for: all that a run depends on, and what of it is shown beside the picture; in the page's
 * address beside the state of the picture; and what was asked for before, to take changes back.
 *
 * @import { Edit, Request, Sampling } from "../engine/engine.js"
 */

/**
 * @typedef {object} Asked
 * @property {string} text
 * @property {string | null} second  the second text of a pair
 * @property {string | null} other  another prompt: to compare with, and to take values from
 * @property {Edit[]} edits
 * @property {Sampling} sampling
 * @property {"zero" | "mean" | "text"} to  what a click sets a head or a layer to
 * @property {"change" | "effect" | null} shade  what the grid of heads shows; null: what fits
 * @property {number | null} place  the token whose prediction is shown; null: the first there is
 * @property {number | null} word  id of the predicted token that a sweep asks about; null: the first
 */

/** @type {Sampling} */
export const USUAL = { temperature: 1, topK: null, topP: null, seed: 0 };

/** @param {string} text @returns {Asked} */
export function askedOf(text) {
  return { text, second: null, other: null, edits: [], sampling: USUAL, to: "zero", shade: null, place: null, word: null };
}

/** One text, or two where the second has been begun. @param {Asked} asked */
export function textsOf({ text, second }) {
  return second ? [text, second] : [text];
}

/**
 * The request that an engine gets, with or without the edits.
 *
 * @param {Asked} asked
 * @param {boolean} edited
 * @returns {Request}
 */
export function requestOf(asked, edited) {
  const request = { texts: textsOf(asked), edits: edited ? asked.edits : [] };
  return asked.other === null ? request : { ...request, other: [asked.other] };
}

/** Names in the address; core/state/fields.js has none of them. */
const OWN = ["text", "second", "other", "edits", "temperature", "topk", "topp", "seed", "to", "heads-show", "place", "word"];
/** Characters of a text, and edits, that an address may bring. */
const [LONGEST, MOST] = [20000, 500];
/** @type {Edit["change"][]} */
const CHANGES = ["zero", "mean", "text", "set", "hide"];
const AXES = { layer: "L", head: "H", position: "P", key: "K", neuron: "N" };
const EDIT = /^([a-z][a-z_]{0,30})-([a-z]+)(?:-L(\d{1,4}))?(?:-H(\d{1,4}))?(?:-P(\d{1,6}))?(?:-K(\d{1,6}))?(?:-N(\d{1,6}))?(?:-V(-?\d+(?:\.\d+)?(?:e-?\d{1,2})?))?$/;

/** An edit in a few letters: probs-set-L0-H2-P3-K4-V0.35. @param {Edit} edit */
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

/** Milliseconds after the last change: browsers refuse an address that changes with every key. */
const ADDRESS_PAUSE = 200;

export class AddressBar {
  /** @param {import("../core/frame/frame.js").Address} address @param {() => Asked} asked */
  constructor(address, asked) {
    this.address = address;
    this.asked = asked;
    this.picture = pictureOf(address.read());
    /** Two pictures are usual with changes: one alone has to be written. */
    this.alone = () => false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** The frame's side of it. @returns {import("../core/frame/frame.js").Address} */
  ofPicture() {
    return {
      read: () => pictureOf(this.address.read()),
      write: (picture) => {
        this.picture = picture;
        this.later();
      },
      listen: (changed) => this.address.listen(changed),
    };
  }

  /** What is written at last. */
  hash() {
    const alone = this.alone() && !new URLSearchParams(this.picture).has("beside");
    return writeAddress(this.asked(), [this.picture, ...(alone ? ["beside=none"] : [])].filter(Boolean).join("&"));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), ADDRESS_PAUSE);
  }

  now() {
    clearTimeout(this.timer);
    this.address.write(this.hash());
  }
}

/** How many steps can be taken back. */
const MOST_STEPS = 200;
/** Milliseconds within which changes of one kind are one step. */
const TOGETHER = 1200;

/**
 * @template Kept
 */
export class History {
  /**
   * @param {Kept} now
   * @param {() => number} [clock]  milliseconds
   */
  constructor(now, clock = () => performance.now()) {
    this.now = now;
    this.clock = clock;
    /** @type {Kept[]} */
    this.before = [];
    /** @type {Kept[]} */
    this.after = [];
    this.last = { kind: "", at: 0 };
  }

  /**
   * A change. Several of one kind soon after one another are taken back together, as when words are
   * typed or a bar is drawn.
   *
   * @param {Kept} next
   * @param {string} [kind]  "": a step of its own
   */
  change(next, kind = "") {
    const at = this.clock();
    const together = kind !== "" && kind === this.last.kind && at - this.last.at < TOGETHER && this.before.length > 0;
    if (!together) this.before = [...this.before, this.now].slice(-MOST_STEPS);
    this.after = [];
    this.last = { kind, at };
    this.now = next;
  }

  /** What follows from the present step and is none of its own. @param {Kept} same */
  amend(same) {
    this.now = same;
  }

  undo() {
    return this.step(this.before, this.after);
  }

  redo() {
    return this.step(this.after, this.before);
  }

  /** Whether there was such a step. @param {Kept[]} from @param {Kept[]} to */
  step(from, to) {
    const next = from.pop();
    if (next === undefined) return false;
    to.push(this.now);
    this.now = next;
    this.last = { kind: "", at: 0 };
    return true;
  }
}

/** Ctrl-Z, and Ctrl-Shift-Z or Ctrl-Y. @param {EventTarget} target @param {(way: "undo" | "redo") => void} step */
export function listenToUndo(target, step) {
  target.addEventListener("keydown", (heard) => {
    const event = /** @type {KeyboardEvent} */ (heard);
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(key)) return;
    // A field's own undo knows nothing of the changes between two words.
    event.preventDefault();
    step(key === "z" && !event.shiftKey ? "undo" : "redo");
  });
}
