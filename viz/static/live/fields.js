/** The texts, as they are typed: one, a second of a pair, and another prompt beside it. */

import { button } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";

/** @typedef {"text" | "second" | "other"} Name */

/** @type {Record<Name, {label: string, add: string, remove: string, hint: string}>} */
const FIELDS = {
  text: { label: "Text", add: "", remove: "", hint: "" },
  second: { label: "Second sentence", add: "+ second sentence", remove: "Remove the second sentence", hint: "The model reads both together" },
  other: {
    label: "Another prompt",
    add: "+ another prompt",
    remove: "Remove the other prompt",
    hint: "Shown beside the text; heads, layers and neurons can take their values from it",
  },
};

/** Characters from which on a text is written smaller. */
const LONG = 120;

/**
 * @param {boolean} pairs  the model takes a second text
 * @param {(name: Name, text: string | null) => void} typed  null: the field was removed
 */
export function createFields(pairs, typed) {
  const names = /** @type {Name[]} */ (pairs ? ["text", "second", "other"] : ["text", "other"]);
  const fields = names.map((name) => createField(name, typed));
  const adders = fields.filter(({ name }) => name !== "text");
  const add = element("div", { class: "live-adders" }, adders.map(({ adder }) => adder));
  fields[0].root.append(add);
  const root = element("div", { class: "live-fields" }, fields.map((field) => field.root));
  return {
    root,
    /** @param {import("./asked.js").Asked} asked */
    update(asked) {
      for (const { name, update } of fields) update(asked[name]);
    },
  };
}

/**
 * @param {Name} name
 * @param {(name: Name, text: string | null) => void} typed
 */
function createField(name, typed) {
  const { label, add, remove, hint } = FIELDS[name];
  const field = element("textarea", { class: "live-text", rows: "1", spellcheck: "false", autocomplete: "off", "aria-label": label });
  field.title = hint;
  const take = button("×", () => typed(name, null), { class: "live-remove", "aria-label": remove, title: remove });
  const parts = name === "text" ? [field] : [element("span", { class: "label" }, [label]), field, take];
  const root = element("div", { class: `live-field ${name}` }, parts);
  const adder = button(add, () => {
    typed(name, "");
    field.focus();
  }, { class: "quiet", title: hint });
  const fit = () => {
    root.classList.toggle("long", field.value.length > LONG);
    field.style.height = "0";
    // With its borders, which no scroll height has.
    field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
  };
  field.addEventListener("input", () => {
    // A line break is a blank to the models, and Enter would only make room.
    if (field.value.includes("\n")) field.value = field.value.replace(/\n+/g, " ");
    fit();
    typed(name, field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) event.preventDefault();
  });
  new ResizeObserver(fit).observe(root);
  return {
    name,
    root,
    adder,
    /** @param {string | null} text */
    update(text) {
      root.hidden = text === null;
      adder.hidden = text !== null;
      if (text === null || field.value === text) return;
      field.value = text;
      fit();
    },
  };
}
