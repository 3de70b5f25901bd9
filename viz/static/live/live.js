/**
 * A page that runs a model: what is typed and changed is asked of the engine, and the views of the
 * page follow. The engine may run in the page or behind it.
 *
 * @typedef {import("./around.js").Around} Around
 * @typedef {import("./asked.js").Asked} Asked
 * @typedef {import("../engine/engine.js").Edit} Edit
 * @typedef {import("../engine/engine.js").Engine} Engine
 * @typedef {import("./runs.js").Kept} Kept
 */

import { Frame } from "../core/frame/frame.js";
import { readAddress } from "./address.js";
import { AddressBar } from "./address_bar.js";
import { askedOf, requestOf } from "./asked.js";
import { createClicks } from "./clicks.js";
import { showDetails } from "./details.js";
import { ExercisesInPage } from "./exercises/in_page.js";
import { movedEdits, movedTokens, toggled, withEdit, withoutEdit } from "./edits.js";
import { GridNumbers } from "./grid_numbers.js";
import { History, listenToUndo } from "./history.js";
import { predictionsOf } from "./missing.js";
import { notedExamples } from "./notes.js";
import { followed, namedExamples, sameRuns } from "./pictures.js";
import { pythonOf } from "./python.js";
import { Runner } from "./runner.js";
import { Runs } from "./runs.js";
import { sourceOf } from "./source.js";
import { staticFile } from "./static_file.js";
import { maskedIn } from "./words.js";
import { Workbench } from "./workbench.js";

/**
 * @param {HTMLElement} host
 * @param {Engine} engine
 * @param {Around} around
 */
export async function openLive(host, engine, around) {
  const live = new Live(host, engine, await engine.about(), around);
  await live.begin();
  return live;
}

class Live {
  /**
   * @param {HTMLElement} host
   * @param {Engine} engine
   * @param {import("../engine/engine.js").About} about
   * @param {Around} around
   */
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
    const open = (/** @type {string[]} */ [first, ...rest]) => this.change({ text: first, second: rest[0] ?? null, edits: [] });
    this.runs = new Runs(engine, sourceOf(engine, about, { samples: around.samples, own: "", open }));
    this.runner = new Runner(() => this.run(), (error) => this.fail(error), () => this.host.setAttribute("aria-busy", "false"));
    this.numbers = new GridNumbers(engine, () => this.update());
    this.bench = new Workbench(about, this.acts(), {
      address: () => `${location.href.split("#")[0]}#${this.bar.hash()}`,
      file: around.shell && (() => this.file()),
    });
    this.exercises = new ExercisesInPage(this);
    /** @type {import("./workbench.js").Shown | null} */
    this.shown = null;
    /** @type {Frame | null} */
    this.frame = null;
    /** @type {ReturnType<typeof createClicks> | null} */
    this.clicks = null;
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
    this.exercises.follow();
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
      this.typed = false;
      this.history.change(readAddress(this.around.address.read(), this.asked.text));
      this.runner.ask().then(() => this.exercises.follow());
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
      layer: (layer) => this.frame?.store.set({ layer }),
      opened: () => this.panels(),
    };
  }

  /**
   * @param {Partial<Asked>} part
   * @param {string} [kind]  changes of one kind soon after one another are one step
   */
  change(part, kind = "") {
    this.history.change({ ...this.asked, ...part }, kind);
    this.bench.fields.update(this.asked);
    this.runner.ask();
  }

  /** What is shown, and no change of the run. @param {Partial<Asked>} part */
  prefer(part) {
    this.history.amend({ ...this.asked, ...part });
    if ("sampling" in part) this.runner.ask();
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
    const before = await this.runs.of(requestOf(asked, false));
    const words = before.example.tokens.text;
    const moved = movedTokens(this.counted ?? words, words);
    if (this.typed && asked.edits.length) asked = this.follow(asked, moved);
    if (this.asked === asked || !this.typed) [this.counted, this.typed] = [words, false];
    const after = asked.edits.length ? await this.runs.of(requestOf(asked, true)) : null;
    const other = asked.other ? await this.runs.of({ texts: [asked.other], edits: [] }) : null;
    this.runs.keep([before, after, other]);
    const runs = { before, after, other };
    // The picture asks first: an engine answers one after the other, the last while it is drawn.
    const [, step, predictions] = await Promise.all([
      this.picture(runs, moved),
      this.about.predicts === "causal" ? this.runs.next(requestOf(asked, true), asked.sampling) : null,
      predictionsOf(before, after, this.about.vocabulary),
    ]);
    this.shown = { ...runs, step, predictions };
    this.bench.fail(null);
    this.update();
  }

  /**
   * Edits at the places that their tokens have now.
   *
   * @param {Asked} asked
   * @param {(number | null)[]} moved
   */
  follow(asked, moved) {
    const next = { ...asked, edits: movedEdits(asked.edits, moved) };
    if (this.asked === asked) this.history.amend(next);
    return next;
  }

  /**
   * Shows the runs in the views of the page, if they are others than before.
   *
   * @param {import("./pictures.js").Shown} runs
   * @param {(number | null)[]} moved  where each token is now
   */
  async picture(runs, moved) {
    if (sameRuns(this.shown, runs)) return;
    const examples = namedExamples(runs);
    if (!this.frame) {
      this.frame = this.open(examples);
      return;
    }
    this.arriving = true;
    try {
      await this.frame.show(examples, followed(this.frame.store.get(), this.shown, runs, moved));
    } finally {
      this.arriving = false;
    }
  }

  /** @param {import("../core/data/example.js").Example[]} examples */
  open(examples) {
    const { kinds, keys, named } = this.around;
    const asked = new URLSearchParams(this.bar.picture);
    const frame = new Frame(this.host, { title: null, view: "head" }, examples, {
      kinds, keys, named, address: this.bar.ofPicture(), heading: this.bench.root,
    });
    this.host.classList.add("live");
    this.bar.alone = () => frame.examples.length > 1 && frame.store.get().beside === null;
    // A page opens at its top, whatever token is kept further down.
    const { reveal } = frame;
    frame.reveal = () => void (frame.reveal = reveal);
    this.clicks = createClicks(frame, (layer, head) => this.bench.changeHead(layer, head));
    frame.pictures.body.before(this.clicks.root);
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
    this.clicks?.update();
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
    const { shown, frame, bench } = this;
    const asking = { shown, frame, asked, panel: bench.tabbed.shown };
    const fresh = () => this.shown === shown && this.asked === asked && bench.tabbed.shown === asking.panel;
    showDetails(asking, bench, fresh).catch((error) => bench.fail(error));
  }

  /** The page as it is, without the model. */
  async file() {
    const { shown, frame, around } = this;
    if (!shown || !frame || !around.shell) throw new Error("nothing is shown");
    const title = shown.before.example.header.texts.join(" / ");
    const examples = notedExamples(shown, this.asked.edits);
    return staticFile(around.shell, examples, { title, view: frame.store.get().view, start: this.bar.picture });
  }
}
