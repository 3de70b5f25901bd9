/**
 * What every page has around its pictures: heading, tabs, controls, cards, colours, address.
 *
 * @typedef {import("./views.js").Kind} Kind
 * @typedef {import("./views.js").View} View
 * @typedef {"light" | "dark"} Theme
 *
 * @typedef {object} Address  where the state is written
 * @property {() => string} read
 * @property {(hash: string) => void} write
 * @property {(changed: () => void) => void} listen
 *
 * @typedef {object} Surroundings
 * @property {Address} address
 * @property {EventTarget} keys  where key strokes are heard
 * @property {(title: string) => void} named
 */

import { usualMinimum } from "./attention.js";
import { element } from "./dom.js";
import { Example } from "./example.js";
import { createHeading, titleOf } from "./heading.js";
import { listenToKeys } from "./keyboard.js";
import { createStore, fromHash, keptToken, toHash } from "./state.js";
import { createTabs } from "./tabs.js";
import { createToolbar } from "./toolbar.js";
import { KINDS } from "./views.js";

/**
 * @param {HTMLElement} host
 * @param {import("./data.js").Header} header
 * @param {import("./data.js").Blocks} blocks
 * @param {Surroundings} around
 */
export function mount(host, header, blocks, around) {
  const frame = new Frame(host, header, blocks, around);
  frame.update().then(() => frame.reveal());
  return frame;
}

class Frame {
  /**
   * @param {HTMLElement} host
   * @param {import("./data.js").Header} header
   * @param {import("./data.js").Blocks} blocks
   * @param {Surroundings} around
   */
  constructor(host, header, blocks, around) {
    this.host = host;
    this.header = header;
    this.around = around;
    this.examples = header.examples.map((entry, i) => new Example(entry, blocks, i));
    this.darkness = matchMedia("(prefers-color-scheme: dark)");
    const hash = around.address.read();
    const asked = Number(new URLSearchParams(hash.replace(/^#/, "")).get("example"));
    const first = this.examples[asked] ? asked : 0;
    this.store = createStore(fromHash(hash, this.limitsOf(this.examples[first])));
    /** @type {Map<string, View>} */
    this.views = new Map();
    /** @type {View[]} */
    this.shown = [];
    /** @type {{update: (theme: Theme) => void} | null} */
    this.toolbar = null;
    this.built = "";
    this.switcher = element("button", { type: "button", class: "theme" });
    this.heading = element("div", { class: "top" });
    this.controls = element("div", { class: "controls" });
    this.pictures = element("div", { class: "pictures" });
    this.side = element("aside", { class: "side" });
    this.body = element("div", { class: "body" }, [this.pictures, this.side]);
    host.classList.add("minibert");
    host.append(this.switcher, this.heading, this.controls, this.body);
    this.listen();
  }

  listen() {
    this.switcher.addEventListener("click", () => {
      this.store.set({ theme: this.theme() === "dark" ? "light" : "dark" });
    });
    this.store.subscribe(() => this.update());
    this.darkness.addEventListener("change", () => this.update());
    this.around.address.listen(() => {
      this.store.set(fromHash(this.around.address.read(), this.limits()));
    });
    listenToKeys(this.around.keys, this);
  }

  /** @returns {Theme} */
  theme() {
    const chosen = this.store.get().theme;
    if (chosen !== "auto") return chosen;
    return this.darkness.matches ? "dark" : "light";
  }

  /** The example that is shown, or the first of the two. */
  example() {
    return this.examples[this.store.get().example];
  }

  limits() {
    return this.limitsOf(this.example());
  }

  /**
   * @param {Example} example
   * @returns {import("./state.js").Limits}
   */
  limitsOf(example) {
    const views = this.kinds(example).map(({ id }) => id);
    const size = example.tokens.text.length;
    const segments = [...example.tokens.segment, ...example.keyTokens.segment];
    return {
      views,
      view: views.includes(this.header.view) ? this.header.view : views[0],
      examples: this.examples.length,
      layers: example.layers,
      heads: example.heads,
      size,
      keys: example.keyTokens.text.length,
      minimum: usualMinimum(size),
      pair: segments.includes(1) && segments.includes(0) && example.keyTokens === example.tokens,
    };
  }

  /** @param {Example} example */
  kinds(example) {
    return KINDS.filter((kind) => !kind.missing(example));
  }

  /** @returns {Kind} */
  kind() {
    const { view } = this.store.get();
    return KINDS.find(({ id }) => id === view) ?? KINDS[0];
  }

  /**
   * @param {Example} example
   * @param {"" | "beside"} place
   * @returns {View}
   */
  view(example, place) {
    const kind = this.kind();
    const name = `${kind.id} ${example.index} ${place}`;
    const { store } = this;
    const stage = { example, store, limits: this.limitsOf(example), theme: () => this.theme() };
    const view = this.views.get(name) ?? kind.create(stage);
    this.views.set(name, view);
    return view;
  }

  /** Shows the store's state; done when every picture is. */
  async update() {
    const state = this.store.get();
    this.host.dataset.theme = this.theme();
    this.host.dataset.view = state.view;
    this.rebuild();
    const other = this.theme() === "dark" ? "light" : "dark";
    this.switcher.textContent = other === "dark" ? "Dark" : "Light";
    this.switcher.setAttribute("aria-label", `Switch to ${other} colours`);
    this.toolbar?.update(this.theme());
    this.around.address.write(toHash(state, this.limits()));
    const drawn = this.shown.map((view) => Promise.resolve(view.update()));
    await Promise.all(drawn).catch((error) => this.fail(error));
  }

  /** Puts another picture or another text in place, where the state asks for one. */
  rebuild() {
    const { view, example, beside } = this.store.get();
    const wanted = [view, example, beside].join(" ");
    if (wanted === this.built) return;
    this.built = wanted;
    const both = [this.example()];
    if (beside !== null) both.push(this.examples[beside]);
    const limits = this.limits();
    const kind = this.kind();
    this.heading.replaceChildren(createHeading(this.header, both));
    this.around.named(titleOf(this.header, this.example()));
    const tabs = createTabs(this.store, this.kinds(this.example()), this.examples);
    const toolbar = createToolbar(this.store, limits, kind, this.example());
    this.toolbar = { update: (theme) => [tabs, toolbar].forEach((part) => part.update(theme)) };
    this.controls.replaceChildren(tabs.root, toolbar.root);
    this.shown = both.map((one, i) => this.view(one, i ? "beside" : ""));
    this.pictures.classList.toggle("two", this.shown.length > 1);
    this.pictures.replaceChildren(...this.shown.map((one) => one.root));
    this.side.replaceChildren(...this.shown.flatMap((one) => one.side));
    this.body.classList.toggle("alone", !this.side.childElementCount);
  }

  /** Changes the text; what it does not have of the state begins anew. */
  open(/** @type {number} */ example) {
    const { theme, view } = this.store.get();
    const hash = toHash({ ...this.store.get(), example }, this.limits());
    const limits = this.limitsOf(this.examples[example]);
    this.store.set({ ...fromHash(hash, limits), example, theme, view: limits.views.includes(view) ? view : limits.view });
  }

  /** @param {Error} error */
  fail(error) {
    const text = `This page cannot show its numbers: ${error.message}. It needs a browser of 2023 or later.`;
    this.host.prepend(element("p", { class: "notice" }, [text]));
  }

  /** The token that is kept, brought into sight. */
  reveal() {
    const kept = keptToken(this.store.get());
    if (kept) this.pictures.querySelector(".token.kept")?.scrollIntoView({ block: "nearest" });
  }
}
