/** The list of changes, each with a button that takes it back; undo and redo. */

import { button } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { editInWords, placeOf } from "./edits.js";

/**
 * @param {{undo: () => void, redo: () => void, clear: () => void, remove: (edit: import("./edits.js").Edit) => void}} acts
 */
export function createChanges(acts) {
  const undo = button("↶ Undo", acts.undo, { class: "live-act", title: "Ctrl-Z" });
  const redo = button("↷ Redo", acts.redo, { class: "live-act", title: "Ctrl-Shift-Z" });
  const clear = button("Take all back", acts.clear, { class: "live-act" });
  const list = element("ul", { class: "live-changes", "aria-label": "Changes" });
  const none = element("p", { class: "live-key" }, [
    "No changes yet. Click a head in the grid, hide a token, or draw a bar under Weights; the picture then shows before and after.",
  ]);
  const root = element("div", { class: "live-panel" }, [none, list]);
  let built = "";
  return {
    root,
    steps: element("div", { class: "live-acts live-steps" }, [undo, redo, clear]),
    /**
     * @param {import("./edits.js").Edit[]} edits
     * @param {(position: number) => string} token
     * @param {{back: boolean, again: boolean}} can
     */
    update(edits, token, can) {
      undo.disabled = !can.back;
      redo.disabled = !can.again;
      clear.disabled = !edits.length;
      none.hidden = edits.length > 0;
      const words = edits.map((edit) => editInWords(edit, token));
      if (words.join("\n") === built) return;
      built = words.join("\n");
      const at = [...list.querySelectorAll("button")].findIndex((one) => one === list.ownerDocument.activeElement);
      list.replaceChildren(...edits.map((edit, i) => {
        const remove = button("×", () => acts.remove(edit), { class: "live-remove", "aria-label": `Take back: ${words[i]}` });
        const item = element("li", {}, [element("span", {}, [words[i]]), remove]);
        item.dataset.place = placeOf(edit);
        return item;
      }));
      if (at < 0) return;
      const left = list.querySelectorAll("button");
      (left[Math.min(at, left.length - 1)] ?? undo).focus();
    },
  };
}
