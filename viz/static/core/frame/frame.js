/**
 * What every page has around its pictures: heading, tabs, controls, cards, colours, address.
 *
 * @typedef {"light" | "dark"} Theme
 *
 * @typedef {object} Address  where the state is written
 * @property {() => string} read
 * @property {(hash: string) => void} write
 * @property {(changed: () => void) => void} listen
 *
 * @typedef {object} Surroundings
 * @property {Kind[]} kinds  the views that the page has
 * @property {Address} address
 * @property {EventTarget} keys  where key strokes are heard
 * @property {(title: string) => void} named
 * @property {HTMLElement} [heading]  what stands in the place of a heading
 * @property {Changes} [changes]  of a run
 *
 * @import { Header } from "../data/data.js"
 * @import { Example } from "../data/example.js"
 * @import { Changes, Kind } from "./kinds.js"
 * @import { Picture } from "./pictures.js"
 * @import { Control } from "./toolbar.js"
 * @import { Limits, State } from "../state/state.js"
 */

import { element } from "../draw/dom.js";
import { listenToPrinter, onPaper } from "../draw/canvas.js";
import { createExport } from "../export/export.js";
import { inOrder, limitsOf } from "./kinds.js";
import { newView, Pictures, say } from "./pictures.js";
import { createChooser, createHeading, createTabs, createToolbar, namesOf, ownName, stepLayer, titleOf } from "./toolbar.js";
import { createStore, fittedState, fittedStore, fromHash, keptToken, toHash, within } from "../state/state.js";

/** @typedef {Pick<Header, "title" | "view" | "start">} Opening  what a page begins with */

export class Frame {
  /**
   * @param {HTMLElement} host
   * @param {Opening} header
   * @param {Example[]} examples  each with its place in the list as its index
   * @param {Surroundings} around
   */
  constructor(host, header, examples, around) {
    this.host = host;
    this.header = header;
    this.around = around;
    this.kinds = inOrder(around.kinds);
    this.examples = examples;
    this.names = namesOf(examples);
    this.darkness = matchMedia("(prefers-color-scheme: dark)");
    /** @type {Map<Example, Limits>} */
    this.known = new Map();
    /** How often the examples were replaced. */
    this.generation = 0;
    const asked = this.asked(around.address.read().replace(/^#/, "") || (header.start ?? ""));
    this.store = createStore(asked, (state) => within(state, this.limitsOf(this.examples[state.example])));
    /** By the names of their kind, text and place. @type {Map<string, Picture>} */
    this.made = new Map();
    this.ending = new AbortController();
    this.shown = /** @type {Picture[]} */ ([]);
    this.parts = /** @type {{update: (theme: Theme) => void}[]} */ ([]);
    this.built = "";
    /** Called when the examples are drawn. */
    this.drawn = () => {};
    const shown = this.kinds.filter((kind) => kind.announced || this.examples.some((example) => !kind.missing(example)));
    this.tabs = createTabs(this.store, shown, () => this.example());
    this.chooser = createChooser(this.store, this.examples, (example) => this.open(example));
    this.giving = createExport(() => this.shown.map(({ view }, i) => ({ name: ownName(this.both()[i]), view })));
    this.switcher = element("button", { type: "button", class: "theme" });
    this.notice = element("p", { class: "notice", role: "alert" });
    this.heading = element("div", { class: "top" }, around.heading ? [around.heading] : []);
    this.controls = element("div", { class: "controls" });
    /** @type {{wanted: string} & Control} */
    this.toolbar = { wanted: "", root: this.controls, update() {} };
    this.pictures = new Pictures(host);
    this.build();
    this.listen();
  }

  build() {
    this.host.classList.add("minibert");
    this.notice.hidden = true;
    this.above = element("div", { class: "above" }, [this.chooser.root, this.tabs.root]);
    const work = element("div", { class: "work" }, [this.above, this.controls, this.pictures.body]);
    this.host.append(this.switcher, this.giving.root, this.notice, this.heading, work);
  }

  listen() {
    this.switcher.addEventListener("click", () => {
      this.store.set({ theme: this.theme() === "dark" ? "light" : "dark" });
    });
    this.store.subscribe(() => this.update());
    this.darkness.addEventListener("change", () => this.update());
    this.around.address.listen(() => this.store.set(this.asked(this.around.address.read())));
    this.around.keys.addEventListener("keydown", (event) => this.heard(/** @type {KeyboardEvent} */ (event)));
    listenToPrinter(this.host, () => void this.update());
  }

  /** The state that an address asks for, of what the text that it names has. @param {string} hash @returns {State} */
  asked(hash) {
    const named = new URLSearchParams(hash.replace(/^#/, "")).get("example") ?? "";
    const example = /^\d+$/.test(named) && this.examples[Number(named)] ? Number(named) : 0;
    const state = fromHash(hash, this.limitsOf(this.examples[example]));
    return state.beside === example ? { ...state, beside: null } : state;
  }

  /** @returns {Theme} */
  theme() {
    if (onPaper(this.host)) return "light";
    const chosen = this.store.get().theme;
    if (chosen !== "auto") return chosen;
    return this.darkness.matches ? "dark" : "light";
  }

  /** The example that is shown, or the first of the two. */
  example() {
    return this.examples[this.store.get().example];
  }

  /** The example that is shown, and the one beside it. */
  both() {
    const { example, beside } = this.store.get();
    return beside === null || beside === example ? [this.example()] : [this.example(), this.examples[beside]];
  }

  limits() {
    return this.limitsOf(this.example());
  }

  /** @param {Example} example @returns {Limits} */
  limitsOf(example) {
    const limits = this.known.get(example) ?? limitsOf(example, this.kinds, this.header.view, this.examples.length);
    this.known.set(example, limits);
    return limits;
  }

  /** @returns {Kind} */
  kind() {
    const { view } = this.store.get();
    return this.kinds.find(({ id }) => id === view) ?? this.kinds[0];
  }

  /** @param {Example} example @param {"" | "beside"} place @returns {Picture} */
  picture(example, place) {
    const kind = this.kind();
    const name = [kind.id, example.index, place].join(" ");
    const known = this.made.get(name);
    if (known) return known;
    const limits = this.limitsOf(example);
    // Of the text that is shown as well: until the next one is drawn it stays, and the state is about the next.
    const store = fittedStore(this.store, () => this.limits(), limits);
    const against = () => (place ? this.example() : null);
    const view = newView(kind, { example, store, limits, theme: () => this.theme(), against, ended: this.ending.signal, changes: this.around.changes });
    const made = { view, said: element("p", { class: "seen", role: "status" }) };
    made.said.hidden = !view.says;
    this.made.set(name, made);
    return made;
  }

  /**
   * Shows other examples in the place of these; done when their pictures are drawn. Until then those
   * before them are seen. What is chosen stays where they have it; `change` is chosen with them.
   *
   * @param {Example[]} examples  each with its place in the list as its index
   * @param {Partial<State>} [change]
   */
  async show(examples, change = {}) {
    const [state, from] = [this.store.get(), this.limits()];
    const first = examples[change.example ?? Math.min(state.example, examples.length - 1)];
    this.ending.abort();
    this.ending = new AbortController();
    this.made.clear();
    this.examples = examples;
    this.names = namesOf(examples);
    this.known.clear();
    this.generation += 1;
    const chooser = createChooser(this.store, examples, (example) => this.open(example));
    this.chooser.root.replaceWith(chooser.root);
    this.chooser = chooser;
    const beside = state.beside !== null && examples[state.beside] ? state.beside : null;
    const drawn = new Promise((resolve) => (this.drawn = () => resolve(undefined)));
    this.store.set({ ...fittedState({ ...state, ...change }, from, this.limitsOf(first)), example: first.index, beside, ...change });
    await drawn;
  }

  /** Shows the store's state; done when every picture is. */
  async update() {
    const state = this.store.get();
    this.host.dataset.theme = this.theme();
    this.host.dataset.view = state.view;
    const rebuilt = this.rebuild();
    const dark = this.theme() === "dark";
    this.switcher.textContent = dark ? "Light" : "Dark";
    this.switcher.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    for (const part of [this.tabs, this.chooser, this.giving, ...this.parts]) part.update(this.theme());
    this.around.address.write(toHash(state, this.limits()));
    const { generation } = this;
    const drawn = await Promise.allSettled(this.shown.map(async ({ view }) => view.update()));
    const failed = drawn.find(({ status }) => status === "rejected");
    if (!failed) await this.pictures.ready();
    if (generation !== this.generation) return;
    this.pictures.reveal();
    this.drawn();
    this.say(failed && "reason" in failed ? failed.reason : null);
    if (rebuilt) this.reveal();
    // Some views know only after a while what they show.
    void Promise.all(this.shown.map(async ({ view, said }) => say(said, (await view.says?.()) ?? [])));
  }

  /** Puts another picture or another text in place, where the state asks for one; whether it did. */
  rebuild() {
    const { view, example, beside } = this.store.get();
    const wanted = [this.generation, view, example, beside].join(" ");
    if (wanted === this.built) return false;
    const replaced = this.built !== "" && !this.built.startsWith(`${this.generation} `);
    this.built = wanted;
    const both = this.both();
    const kind = this.kind();
    // What is in use there stays.
    if (!this.around.heading) this.heading.replaceChildren(createHeading(this.header, both));
    this.around.named(titleOf(this.header, this.example()));
    this.pictures.body.setAttribute("aria-label", kind.label);
    this.parts = [this.toolbarOf(kind)];
    this.shown = both.map((one, i) => this.picture(one, i ? "beside" : ""));
    this.pictures.place(this.shown, both.map(({ index }) => this.names[index]), replaced);
    return !replaced;
  }

  /** The controls of a view; the same as before where they are the same, as they may be in use. @param {Kind} kind */
  toolbarOf(kind) {
    const { layers, heads, first, pair } = this.limits();
    const { tokens, keyTokens } = this.example();
    const special = [...tokens.special, ...keyTokens.special].includes(1);
    const wanted = JSON.stringify([kind.id, layers, heads, first, pair, special]);
    if (wanted !== this.toolbar.wanted) {
      this.toolbar = { wanted, ...createToolbar(this.store, this.limits(), kind, this.example()) };
      this.controls.replaceChildren(this.toolbar.root);
    }
    return this.toolbar;
  }

  /** Changes the text; what it does not have of the state begins anew. */
  open(/** @type {number} */ example) {
    const state = this.store.get();
    const fitted = fittedState(state, this.limits(), this.limitsOf(this.examples[example]));
    // The two change places.
    const beside = state.beside === example ? state.example : state.beside;
    this.store.set({ ...fitted, example, beside });
  }

  /** @param {Error | null} error */
  say(error) {
    this.notice.hidden = !error;
    const needed = "It needs a browser of 2023 or later.";
    this.notice.textContent = error ? `This page cannot show its numbers: ${error.message}. ${needed}` : "";
  }

  /** The token that is kept, brought into sight. */
  reveal() {
    const kept = keptToken(this.store.get());
    if (kept) this.pictures.root.querySelector(".kept")?.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  heard(event) {
    const [at] = event.composedPath();
    const typing = at instanceof HTMLSelectElement || at instanceof HTMLInputElement || at instanceof HTMLTextAreaElement;
    if (typing || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (this.act(event)) event.preventDefault();
  }

  /** @param {KeyboardEvent} event @returns {boolean}  whether the key meant something here */
  act(event) {
    if (this.shown.some(({ view }) => view.keydown?.(event))) return true;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      stepLayer(this.store, this.limits(), event.key === "ArrowLeft" ? -1 : 1);
      return true;
    }
    const step = { n: 1, p: -1 }[event.key];
    const next = this.store.get().example + (step ?? 0);
    if (!step || this.examples.length < 2) return false;
    if (this.examples[next]) this.open(next);
    return true;
  }
}
