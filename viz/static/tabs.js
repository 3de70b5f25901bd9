/** The tabs above the controls: which picture, and of which text. */

import { element } from "./dom.js";

/**
 * @param {import("./state.js").Store} store
 * @param {import("./views.js").Kind[]} kinds
 * @param {import("./example.js").Example[]} examples
 */
export function createTabs(store, kinds, examples) {
  const tabs = kinds.map(({ id, label, title }) => {
    const tab = element("button", { type: "button", role: "tab", class: "tab", title, "aria-label": label }, [label]);
    tab.dataset.view = id;
    tab.addEventListener("click", () => store.set({ view: id }));
    return tab;
  });
  const root = element("div", { class: "tabs", role: "tablist", "aria-label": "Picture" }, tabs);
  root.hidden = kinds.length < 2 && examples.length < 2;
  return {
    root,
    update() {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab.dataset.view === store.get().view));
      }
    },
  };
}
