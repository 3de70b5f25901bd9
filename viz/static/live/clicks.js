/** In pictures of many heads a click can change a head as in the small grid. */

import { segments } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";

/**
 * @param {import("../core/frame/frame.js").Frame} frame
 * @param {(layer: number, head: number) => void} change
 */
export function createClicks(frame, change) {
  let changes = false;
  const choice = segments([{ id: "open", label: "opens it" }, { id: "change", label: "changes it" }], (id) => {
    changes = id === "change";
    choice.show(id);
  }, "What a click on a head does");
  choice.show("open");
  const note = element("span", { class: "live-hint" }, ["Shift-click, or X on the chosen one, changes a head too."]);
  const root = element("div", { class: "live-row live-clicks" }, [element("span", { class: "live-label" }, ["A click on a head"]), choice.root, note]);
  const { body } = frame.pictures;
  const listen = (/** @type {"click" | "keydown"} */ type, /** @type {(event: MouseEvent | KeyboardEvent) => boolean} */ means) =>
    body.addEventListener(type, (event) => {
      const { target } = event;
      const view = frame.shown.find((one) => target instanceof Node && one.root.contains(target));
      const head = view?.headAt && means(event) ? view.headAt(event) : null;
      if (!head) return;
      event.preventDefault();
      event.stopPropagation();
      change(head.layer, head.head);
    }, { capture: true });
  listen("click", (event) => changes || event.shiftKey);
  listen("keydown", (event) => event instanceof KeyboardEvent && event.key.toLowerCase() === "x" && !event.ctrlKey && !event.metaKey && !event.altKey);
  return {
    root,
    update() {
      root.hidden = !frame.shown.some(({ headAt }) => headAt);
    },
  };
}
