/** The tabs above the controls: which picture. */

import { element } from "../draw/dom.js";

/**
 * Tabs for all pictures that some text of the page has; those that the present one does not have
 * are switched off and say why.
 *
 * @param {import("../state/state.js").Store} store
 * @param {import("./kinds.js").Kind[]} kinds
 * @param {() => import("../data/example.js").Example} example
 */
export function createTabs(store, kinds, example) {
  const tabs = kinds.map(({ id, label }) => {
    const tab = element("button", { type: "button", role: "tab", class: "tab", "aria-label": label }, [label]);
    tab.dataset.view = id;
    tab.addEventListener("click", () => tab.getAttribute("aria-disabled") || store.set({ view: id }));
    return tab;
  });
  const root = element("div", { class: "tabs", role: "tablist", "aria-label": "Picture" }, tabs);
  root.hidden = kinds.length < 2;
  root.addEventListener("keydown", (event) => {
    const to = target(tabs, event);
    if (!to) return;
    // Elsewhere these keys mean layers.
    event.preventDefault();
    event.stopPropagation();
    to.focus();
    to.click();
  });
  /** @type {HTMLElement | null} */
  let seen = null;
  return {
    root,
    update() {
      tabs.forEach((tab, i) => {
        const selected = tab.dataset.view === store.get().view;
        const missing = kinds[i].missing(example());
        tab.setAttribute("aria-selected", String(selected));
        tab.tabIndex = selected ? 0 : -1;
        tab.title = missing || kinds[i].title;
        // Where the tabs are a row that scrolls; it would lay out the page each time.
        if (selected && seen !== tab) root.scrollLeft = tab.offsetLeft - root.offsetLeft - (root.clientWidth - tab.offsetWidth) / 2;
        if (selected) seen = tab;
        if (missing) tab.setAttribute("aria-disabled", "true");
        else tab.removeAttribute("aria-disabled");
      });
    },
  };
}

/**
 * The tab that a key leads to.
 *
 * @param {HTMLElement[]} tabs
 * @param {KeyboardEvent} event
 */
function target(tabs, { key, target: from, altKey, ctrlKey, metaKey }) {
  if (altKey || ctrlKey || metaKey) return undefined;
  const open = tabs.filter((tab) => !tab.getAttribute("aria-disabled"));
  const at = open.findIndex((tab) => tab === from);
  if (key === "ArrowLeft") return open[(at - 1 + open.length) % open.length];
  if (key === "ArrowRight") return open[(at + 1) % open.length];
  if (key === "Home") return open[0];
  return key === "End" ? open[open.length - 1] : undefined;
}
