/**
 * A page that runs a model: what is typed and changed is asked of the engine, and the views of the page follow. The
 * engine may run in the page or behind it.
 *
 * @import { Kind } from "../core/frame/kinds.js"
 * @import { Edit, Engine } from "../engine/engine.js"
 * @import { Asked } from "./asked.js"
 */

import { element } from "../core/draw/dom.js";
import { handOver } from "../core/hand_over.js";
import { currentHead, pageAddress } from "../core/state/state.js";
import { markPainted, nameWindow, unpacked } from "./show_page.js";
import { wholeKind } from "../views/whole/whole.js";
import { seenOf } from "../core/data/softmax.js";
import { Frame } from "../core/frame/frame.js";
import { everyNumberKind } from "../views/arithmetic/every.js";
import { AddressBar, askedOf, History, listenToUndo, readAddress, requestOf, writeAddress } from "./asked.js";
import { maskedIn } from "./cards.js";
import { CHANGES, edgeOf, editAt, movedEdits, movedTokens, pythonOf, toggled, withEdit, withoutEdit } from "./edits.js";
import { followed, GridNumbers, namedExamples, Runner, Runs, sameRuns } from "./runs.js";
import { Workbench } from "./workbench.js";

/**
 * @typedef {object} Around  what a live page stands in
 * @property {import("../core/frame/kinds.js").Kind[]} kinds
 * @property {import("../core/frame/frame.js").Address} address
 * @property {EventTarget} keys  where key strokes are heard
 * @property {(title: string) => void} named
 * @property {string[]} texts  to begin with
 * @property {string} note  of the page on its numbers; "" for none
 */

/** Weights of a layer that are asked of an engine as they are; more of them are taken as the picture has them. */
const LARGEST_WEIGHTS = 1e6;

/**
 * The weights of a head, (query, key).
 *
 * @param {import("./runs.js").Kept} kept
 * @param {number} layer
 * @param {number} head
 */
async function weightsOf({ example }, layer, head) {
  const cells = example.tokens.text.length ** 2;
  if (!example.source || cells * example.heads.length > LARGEST_WEIGHTS) return example.head(layer, head);
  const { values } = await example.source.read("probs", layer);
  return values.subarray(head * cells, (head + 1) * cells);
}

class Live {
  /** @param {HTMLElement} host @param {Engine} engine @param {import("../engine/engine.js").About} about @param {Around} around */
  constructor(host, engine, about, around) {
    this.host = host;
    this.engine = engine;
    this.about = about;
    this.around = around;
    const [text, second = null] = around.texts;
    const asked = readAddress(around.address.read(), text);
    const fresh = !new URLSearchParams(around.address.read().replace(/^#/, "")).has("text");
    /** @type {History<Asked>} */
    this.history = new History(fresh ? { ...asked, second: asked.second ?? second } : asked);
    this.bar = new AddressBar(around.address, () => this.asked);
    this.runs = new Runs(engine, about);
    this.runner = new Runner(() => this.run(), (error) => this.fail(error), () => this.host.setAttribute("aria-busy", "false"));
    this.numbers = new GridNumbers(engine, () => this.update());
    this.bench = new Workbench(about, this.acts(), () => `${location.href.split("#")[0]}#${this.bar.hash()}`);
    /** @type {import("./workbench.js").Shown | null} */
    this.shown = null;
    /** @type {Frame | null} */
    this.frame = null;
    /** The tokens that the places of the edits are counted in. @type {string[] | null} */
    this.counted = null;
    this.typed = this.arriving = false;
    /** @type {unknown} */
    this.failed = null;
    this.listen();
  }

  /** The first run; what an address asks for may be nothing that this model can do. */
  async begin() {
    const { asked } = this;
    await this.runner.ask();
    const { failed } = this;
    for (const less of [{ ...asked, edits: [] }, askedOf(this.around.texts[0])]) {
      if (this.frame) break;
      this.history.amend(less);
      await this.runner.ask();
    }
    if (!this.frame) throw this.failed;
    if (failed) this.bench.fail(failed);
  }

  /** @param {unknown} error */
  fail(error) {
    this.failed = error;
    this.bench.fail(error);
  }

  get asked() {
    return this.history.now;
  }

  listen() {
    listenToUndo(this.around.keys, (way) => this.step(way));
    this.around.address.listen(() => {
      const next = readAddress(this.around.address.read(), this.asked.text);
      // Of another picture alone there is nothing to take back.
      if (writeAddress(next, "") === writeAddress(this.asked, "")) return;
      this.typed = false;
      this.history.change(next);
      this.runner.ask();
    });
  }

  /** What the reader can do. @returns {import("./workbench.js").Acts} */
  acts() {
    const edits = (/** @type {Edit[]} */ next, kind = "") => this.change({ edits: next }, kind);
    const state = () => this.frame?.store.get();
    return {
      type: (name, text) => {
        this.typed ||= name === "text" || name === "second";
        this.change({ [name]: text }, text === null ? "" : `type ${name}`);
      },
      toggle: (edit) => edits(toggled(this.asked.edits, edit)),
      // At the end of the list: what is set last is not scaled by the others.
      set: (edit, kind) => edits(withEdit(withoutEdit(this.asked.edits, edit), edit), kind),
      remove: (edit) => edits(withoutEdit(this.asked.edits, edit)),
      clear: () => edits([]),
      undo: () => this.step("undo"),
      redo: () => this.step("redo"),
      prefer: (part) => this.prefer(part),
      next: () => this.next(),
      choose: (query) => this.frame?.store.set(state()?.query === query ? { query: null, key: null } : { query, anchor: "query" }),
      mask: (position) => this.mask(position),
      opened: () => this.panels(),
    };
  }

  /**
   * @param {Partial<Asked>} part
   * @param {string} [kind]  changes of one kind soon after one another are one step
   */
  change(part, kind = "") {
    this.history.change({ ...this.asked, ...part }, kind);
    this.bench.type(this.asked);
    this.runner.ask();
  }

  /** What is shown, and no change of the run. @param {Partial<Asked>} part */
  prefer(part) {
    this.history.amend({ ...this.asked, ...part });
    if ("sampling" in part) this.runner.ask();
    if ("to" in part) this.frame?.update();
    this.update();
  }

  /** @param {"undo" | "redo"} way */
  step(way) {
    const { sampling, to, shade, place, word } = this.asked;
    if (!this.history[way]()) return;
    this.typed = false;
    this.history.amend({ ...this.asked, sampling, to, shade, place, word });
    this.runner.ask();
  }

  /** The next token, as it is drawn. */
  next() {
    if (!this.shown?.step) return;
    this.typed = true;
    this.change({ text: this.shown.step.text });
  }

  /** @param {number} position */
  mask(position) {
    const { tokens } = this.shown?.before.example ?? {};
    const change = tokens && this.about.mask ? maskedIn(this.asked, tokens, position, this.about.mask) : null;
    if (!change) return this.bench.fail(new Error("This word was not found in the text as it is typed."));
    this.typed = true;
    return this.change(change);
  }

  /** One run of what is asked for now. */
  async run() {
    this.host.setAttribute("aria-busy", "true");
    let { asked } = this;
    const { typed } = this;
    // An engine answers one after the other: what follows a pass is asked for together with it.
    const next = () => (this.about.predicts === "causal" ? this.runs.next(requestOf(asked, true), asked.sampling) : null);
    const coming = this.runs.of(requestOf(asked, false));
    const plain = asked.edits.length ? null : next();
    const before = await coming;
    const words = before.example.tokens.text;
    const moved = movedTokens(this.counted ?? words, words);
    if (this.typed && asked.edits.length) asked = this.follow(asked, moved);
    if (this.asked === asked || !this.typed) [this.counted, this.typed] = [words, false];
    const [after, step] = asked.edits.length ? await Promise.all([this.runs.of(requestOf(asked, true)), next()]) : [null, await plain];
    const other = asked.other ? await this.runs.of({ texts: [asked.other], edits: [] }) : null;
    this.runs.keep([before, after, other]);
    const runs = { before, after, other };
    await this.picture(runs, moved, typed);
    const predictions = { before: before.run.predictions, after: after?.run.predictions ?? null };
    this.shown = { ...runs, step, predictions };
    this.bench.fail(null);
    this.update();
  }

  /** Edits at the places that their tokens have now. @param {Asked} asked @param {(number | null)[]} moved */
  follow(asked, moved) {
    const next = { ...asked, edits: movedEdits(asked.edits, moved) };
    if (this.asked === asked) this.history.amend(next);
    return next;
  }

  /**
   * Shows the runs in the views of the page, if they are others than before.
   *
   * @param {import("./runs.js").Shown} runs
   * @param {(number | null)[]} moved  where each token is now
   * @param {boolean} typed  who types looks at the text
   */
  async picture(runs, moved, typed) {
    if (sameRuns(this.shown, runs)) return;
    const examples = namedExamples(runs);
    if (!this.frame) {
      this.frame = this.open(examples);
      return;
    }
    this.arriving = true;
    try {
      await this.frame.show(examples, followed(this.frame.store.get(), this.shown, runs, moved));
      if (!typed) this.reveal();
    } finally {
      this.arriving = false;
    }
  }

  /** Brings the picture into sight, of two the second. */
  reveal() {
    const root = this.frame?.pictures.root;
    (root?.querySelector(".picture:last-child") ?? root)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** @param {import("../core/data/example.js").Example[]} examples */
  open(examples) {
    const { kinds, keys, named } = this.around;
    const asked = new URLSearchParams(this.bar.picture);
    const frame = new Frame(this.host, { title: null, view: "head" }, examples, {
      kinds, keys, named, address: this.bar.ofPicture(), heading: this.bench.root,
      changes: {
        has: (place) => editAt(this.asked.edits, { ...place, change: "zero" }) !== undefined,
        toggle: (place) => this.acts().toggle({ ...place, change: this.asked.to }),
        to: () => CHANGES[this.asked.to],
      },
    });
    this.host.classList.add("live");
    this.host.append(this.bench.bench, element("p", { class: "note" }, [this.around.note]));
    this.bar.alone = () => frame.examples.length > 1 && frame.store.get().beside === null;
    // A page opens at its top, whatever token is kept further down.
    const { reveal } = frame;
    frame.reveal = () => void (frame.reveal = reveal);
    frame.store.subscribe(() => this.update());
    if (examples.length > 1 && !asked.has("beside") && !asked.has("example")) frame.store.set({ beside: 1 });
    else frame.update();
    return frame;
  }

  /** Shows in the panels what there is; with a picture that arrives they change once, when it is there. */
  update() {
    if (this.arriving) return;
    this.panels();
    this.bar.later();
  }

  panels() {
    if (!this.shown || !this.frame) return;
    const { before } = this.shown;
    const { asked } = this;
    const places = before.run.predictions.map(({ position }) => position);
    const place = Math.max(0, places.indexOf(asked.place ?? -1));
    const numbers = this.numbers.of(this.shown, asked, place);
    this.bench.update({
      ...this.shown, asked, place, ...numbers,
      shade: this.numbers.shade(this.shown, asked),
      query: this.frame.store.get().query,
      theme: this.frame.theme(),
      can: { back: this.history.before.length > 0, again: this.history.after.length > 0 },
      python: pythonOf(asked, this.about, places),
    });
    this.rowOfWeights().catch((error) => this.bench.fail(error));
  }

  /** Shows, where its panel is open, the weights of the chosen token in the chosen head. */
  async rowOfWeights() {
    const { shown, frame, bench, asked } = this;
    if (!shown || !frame || bench.tabbed.shown !== "weights") return;
    const kept = shown.after ?? shown.before;
    const { tokens, causal } = kept.example;
    const { layer, query: chosen } = frame.store.get();
    const head = currentHead(frame.store.get(), frame.limits());
    const size = tokens.text.length;
    const query = Math.min(chosen ?? asked.place ?? shown.before.run.predictions[0]?.position ?? 0, size - 1);
    const all = await weightsOf(kept, layer, head);
    // Something else may have been asked for while these were read.
    if (this.shown !== shown || this.asked !== asked || bench.tabbed.shown !== "weights") return;
    const own = asked.edits.filter((edit) => edit.quantity === "probs" && edit.layer === layer && edit.head === head && edit.position === query);
    bench.weights.update({
      tokens, layer, head, query, weights: all.subarray(query * size, (query + 1) * size),
      ...seenOf({ nKeys: size, window: kept.example.looking(layer).window }, causal, query),
      cut: (key, reach) => editAt(asked.edits, edgeOf({ layer, head, position: query }, key, reach)) !== undefined,
      set: own.map(({ key }) => Number(key)),
    });
  }
}

/**
 * Makes the script of a page that runs a model; `engineOf` gives its engine, of what the header says of the model, and
 * may ask for one in the element of the page first.
 *
 * @param {(held: any, page: HTMLElement) => Promise<Engine>} engineOf
 */
export function showLive(engineOf) {
  const show = async (/** @type {HTMLElement} */ page, /** @type {Kind[]} */ kinds) => {
    const { live: held } = await unpacked("header").json();
    const engine = await engineOf(held, page);
    const about = await engine.about();
    // Of a model that was dropped one for what it predicts.
    const texts = Array.isArray(held.texts) ? held.texts : [held.texts[about.predicts].replaceAll("[MASK]", about.mask ?? "[MASK]")];
    const live = new Live(page, engine, about, {
      // With a wider arithmetic view in the place of the one for weights.
      kinds: kinds.map((kind) => (kind.id === "arithmetic" ? everyNumberKind : kind)),
      address: pageAddress(), keys: document, named: nameWindow, texts, note: held.note ?? "",
    });
    await live.begin();
    return markPainted(page);
  };
  handOver({ kinds: [wholeKind], showPage: show });
}
