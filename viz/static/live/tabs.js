/** A card of several panels of which one is seen. */

import { element } from "../core/draw/dom.js";

/**
 * @param {string} name
 * @param {{id: string, label: string, panel: HTMLElement}[]} panels
 * @param {(id: string) => void} [opened]
 */
export function createTabbed(name, panels, opened = () => {}) {
  const tabs = panels.map(({ id, label, panel }) => {
    const tab = element("button", { type: "button", role: "tab", class: "live-tab", id: `live-tab-${id}`, "aria-controls": `live-panel-${id}` }, [label]);
    tab.addEventListener("click", () => open(id));
    Object.assign(panel, { id: `live-panel-${id}`, role: "tabpanel" });
    panel.setAttribute("aria-labelledby", tab.id);
    return tab;
  });
  const row = element("div", { class: "live-tabs", role: "tablist", "aria-label": name }, tabs);
  row.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const to = tabs[(tabs.findIndex((tab) => tab === event.target) + by + tabs.length) % tabs.length];
    to.focus();
    to.click();
  });
  const root = element("section", { class: "live-card live-tabbed", "aria-label": name }, [row, ...panels.map(({ panel }) => panel)]);
  let shown = panels[0].id;
  const open = (/** @type {string} */ id) => {
    shown = id;
    panels.forEach(({ id: one, panel }, i) => {
      panel.hidden = one !== id;
      tabs[i].setAttribute("aria-selected", String(one === id));
      tabs[i].tabIndex = one === id ? 0 : -1;
    });
    opened(id);
  };
  open(shown);
  return {
    root,
    tabs,
    get shown() {
      return shown;
    },
  };
}
