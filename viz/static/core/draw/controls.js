/** Controls that stand in several places of a page: a choice among buttons, tabs, a menu, a step. */

import { element } from "./dom.js";

/** A name and what it is about. @param {string} name @param {Node[]} children */
export function group(name, children) {
  const label = element("span", { class: "label", "aria-hidden": "true" }, [name]);
  const row = element("div", { class: "row" }, children);
  return element("div", { class: "group", role: "group", "aria-label": name }, [label, row]);
}

/** @param {string | Node} content @param {() => void} act @param {Record<string, string>} [attributes] */
export function button(content, act, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, [content]);
  made.addEventListener("click", act);
  return made;
}

/**
 * A menu: the texts of its values.
 *
 * @param {string} name
 * @param {[string, string][]} options  value and text
 * @param {(value: string) => void} choose
 */
export function menu(name, options, choose) {
  const made = element("select", { "aria-label": name }, options.map(([value, text]) => element("option", { value }, [text])));
  made.addEventListener("change", () => choose(made.value));
  return made;
}

/**
 * Buttons of which one is pressed.
 *
 * @template {string} Id
 * @param {{id: Id, label: string | Node, title?: string, name?: string}[]} choices  name: as a screen reader says it
 * @param {(id: Id) => void} choose
 * @param {string} [label]  of all together
 */
export function segments(choices, choose, label = "") {
  const buttons = choices.map(({ id, label: text, title, name }) =>
    button(text, () => choose(id), { "data-choice": id, ...(title && { title }), ...(name && { "aria-label": name }) }),
  );
  const root = element("div", { class: "segments" }, buttons);
  if (label) {
    root.role = "group";
    root.ariaLabel = label;
  }
  return {
    root,
    /** @param {string} chosen */
    show(chosen) {
      buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(choices[i].id === chosen)));
    },
  };
}

/**
 * Tabs, of which one is selected; arrows, Home and End lead to those that are not switched off.
 *
 * @param {string} name  of all together
 * @param {{id: string, label: string}[]} choices
 * @param {(id: string) => void} choose
 * @param {string} [kind]  before the class names
 */
export function tabsOf(name, choices, choose, kind = "") {
  const on = (/** @type {HTMLElement} */ tab) => tab.getAttribute("aria-disabled") !== "true";
  const tabs = choices.map(({ id, label }) => {
    const tab = button(label, () => on(tab) && choose(id), { role: "tab", class: `${kind}tab`, "data-view": id });
    return tab;
  });
  const root = element("div", { class: `${kind}tabs`, role: "tablist", "aria-label": name }, tabs);
  root.addEventListener("keydown", (event) => {
    const open = tabs.filter(on);
    const at = open.findIndex((tab) => tab === event.target);
    const to = { ArrowLeft: open.at(at - 1), ArrowRight: open[(at + 1) % open.length], Home: open[0], End: open.at(-1) }[event.key];
    if (!to || event.altKey || event.ctrlKey || event.metaKey) return;
    // Elsewhere these keys mean layers.
    event.preventDefault();
    event.stopPropagation();
    to.focus();
    to.click();
  });
  return {
    root,
    tabs,
    /** @param {string} chosen */
    show(chosen) {
      tabs.forEach((tab, i) => {
        tab.setAttribute("aria-selected", String(choices[i].id === chosen));
        tab.tabIndex = choices[i].id === chosen ? 0 : -1;
      });
    },
  };
}

/** Rows and columns that an arrow leads on. */
export const STEPS = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] });

/**
 * Gives the keyboard to the element that an arrow leads to among rows of them; only it is then reached by Tab.
 *
 * @param {KeyboardEvent} event
 * @param {ArrayLike<Element>[]} rows
 * @returns {boolean}  whether the key meant something there
 */
export function walk({ key, target }, rows) {
  const step = STEPS[key];
  const placed = rows.map((row) => Array.from(row).findIndex((one) => one === target));
  const row = placed.findIndex((place) => place >= 0);
  if (!step || row < 0 || (rows.length === 1 && step[0])) return false;
  const [from, to] = [rows[row][placed[row]], rows[row + step[0]]?.[placed[row] + step[1]]];
  if (to instanceof HTMLElement && from instanceof HTMLElement) {
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
  return true;
}
