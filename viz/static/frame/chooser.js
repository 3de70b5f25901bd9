/** Which text of the page is shown, and which one beside it. */

import { element } from "../draw/dom.js";
import { namesOf } from "./heading.js";
import { visible } from "../draw/text.js";

/** Up to so many texts have a button each, if their names are short together. */
const BUTTONS = 4;
const ROOM = 60;
/** Characters of a name in a menu. */
const SHORT = 60;

/**
 * @param {import("./state.js").Store} store
 * @param {import("../data/example.js").Example[]} examples
 * @param {(example: number) => void} open
 */
export function createChooser(store, examples, open) {
  const root = element("div", { class: "chooser", role: "group", "aria-label": "Text" });
  root.hidden = examples.length < 2;
  if (root.hidden) return { root, update() {} };
  const names = namesOf(examples).map((name) => visible(name, SHORT));
  const asButtons = names.length <= BUTTONS && names.join("").length <= ROOM;
  const texts = asButtons ? buttons(names, store, open) : menuOfTexts(names, store, open);
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
 * @param {import("./state.js").Store} store
 * @param {(example: number) => void} open
 */
function buttons(names, store, open) {
  const made = names.map((name, i) => {
    const one = element("button", { type: "button", "aria-label": `Text: ${name}` }, [element("bdi", {}, [name])]);
    one.addEventListener("click", () => open(i));
    return one;
  });
  return {
    root: labelled("Text", element("div", { class: "segments texts-of-page" }, made)),
    update: () => made.forEach((one, i) => one.setAttribute("aria-pressed", String(i === store.get().example))),
  };
}

/**
 * @param {string[]} names
 * @param {import("./state.js").Store} store
 * @param {(example: number) => void} open
 */
function menuOfTexts(names, store, open) {
  const menu = menuOf(names.map((name, i) => [String(i), `${i + 1}. ${name}`]), "Text");
  menu.addEventListener("change", () => open(Number(menu.value)));
  const back = step("‹", "Previous text", () => open(store.get().example - 1));
  const on = step("›", "Next text", () => open(store.get().example + 1));
  const count = element("span", { class: "of" }, [`of ${names.length}`]);
  return {
    root: labelled("Text", element("div", { class: "stepper" }, [back, menu, on]), count),
    update() {
      const { example } = store.get();
      menu.value = String(example);
      back.disabled = example === 0;
      on.disabled = example === names.length - 1;
    },
  };
}

/**
 * @param {string[]} names
 * @param {import("./state.js").Store} store
 */
function menuBeside(names, store) {
  const menu = menuOf([["", "nothing"], ...names.map((name, i) => /** @type {[string, string]} */ ([String(i), name]))], "Compare with");
  menu.addEventListener("change", () => store.set({ beside: menu.value === "" ? null : Number(menu.value) }));
  return {
    root: labelled("Compare with", element("div", { class: "stepper" }, [menu])),
    update() {
      const { example, beside } = store.get();
      menu.value = beside === null ? "" : String(beside);
      for (const option of menu.options) option.hidden = option.value === String(example);
    },
  };
}

/**
 * @param {[string, string][]} options  value and text
 * @param {string} name
 */
function menuOf(options, name) {
  const made = options.map(([value, text]) => element("option", { value }, [text]));
  return element("select", { "aria-label": name }, made);
}

/**
 * @param {string} text
 * @param {string} name
 * @param {() => void} act
 */
function step(text, name, act) {
  const made = element("button", { type: "button", class: "step", "aria-label": name, title: name }, [text]);
  made.addEventListener("click", act);
  return made;
}

/**
 * @param {string} name
 * @param {Node[]} children
 */
function labelled(name, ...children) {
  const label = element("span", { class: "label", "aria-hidden": "true" }, [name]);
  return element("div", { class: "choice" }, [label, ...children]);
}
