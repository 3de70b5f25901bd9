/** Which text of the page is shown, and which one beside it. */

import { button, menu, segments } from "../draw/controls.js";
import { element } from "../draw/dom.js";
import { visible } from "../text/text.js";
import { namesOf } from "./heading.js";

/** Up to so many texts have a button each, if their names are short together. */
const BUTTONS = 4;
const ROOM = 60;
/** Characters of a name in a menu. */
const SHORT = 60;

/**
 * @param {import("../state/state.js").Store} store
 * @param {import("../data/example.js").Example[]} examples
 * @param {(example: number) => void} open
 */
export function createChooser(store, examples, open) {
  const root = element("div", { class: "chooser", role: "group", "aria-label": "Text" });
  root.hidden = examples.length < 2;
  if (root.hidden) return { root, update() {} };
  const names = namesOf(examples).map((name) => visible(name, SHORT));
  const asButtons = names.length <= BUTTONS && names.join("").length <= ROOM;
  const texts = (asButtons ? buttonsOfTexts : menuOfTexts)(names, store, open);
  const beside = menuBeside(names, store);
  root.append(texts.root, beside.root);
  return {
    root,
    update() {
      texts.update();
      beside.update();
    },
  };
}

/**
 * @param {string[]} names
 * @param {import("../state/state.js").Store} store
 * @param {(example: number) => void} open
 */
function buttonsOfTexts(names, store, open) {
  const choices = names.map((name, i) => ({ id: String(i), label: element("bdi", {}, [name]), name: `Text: ${name}` }));
  const made = segments(choices, (id) => open(Number(id)), "", "texts-of-page");
  return { root: labelled("Text", made.root), update: () => made.show(String(store.get().example)) };
}

/**
 * @param {string[]} names
 * @param {import("../state/state.js").Store} store
 * @param {(example: number) => void} open
 */
function menuOfTexts(names, store, open) {
  const options = names.map((name, i) => /** @type {[string, string]} */ ([String(i), `${i + 1}. ${name}`]));
  const all = menu("Text", options, (value) => open(Number(value)));
  const back = button("‹", () => open(store.get().example - 1), step("Previous text"));
  const on = button("›", () => open(store.get().example + 1), step("Next text"));
  const count = element("span", { class: "of" }, [`of ${names.length}`]);
  return {
    root: labelled("Text", element("div", { class: "stepper" }, [back, all, on]), count),
    update() {
      const { example } = store.get();
      all.value = String(example);
      back.disabled = example === 0;
      on.disabled = example === names.length - 1;
    },
  };
}

/**
 * @param {string[]} names
 * @param {import("../state/state.js").Store} store
 */
function menuBeside(names, store) {
  const options = names.map((name, i) => /** @type {[string, string]} */ ([String(i), name]));
  const choose = (/** @type {string} */ value) => store.set({ beside: value === "" ? null : Number(value) });
  const all = menu("Compare with", [["", "nothing"], ...options], choose);
  return {
    root: labelled("Compare with", element("div", { class: "stepper" }, [all])),
    update() {
      const { example, beside } = store.get();
      all.value = beside === null ? "" : String(beside);
      for (const option of all.options) option.hidden = option.value === String(example);
    },
  };
}

/**
 * @param {string} name
 * @param {Node[]} children
 */
function labelled(name, ...children) {
  const label = element("span", { class: "label", "aria-hidden": "true" }, [name]);
  return element("div", { class: "choice" }, [label, ...children]);
}

/** @param {string} name */
function step(name) {
  return { class: "step", "aria-label": name, title: name };
}
