/** What shapes and colours of the picture of queries and keys say. */

import { element } from "../../core/draw/dom.js";
import { KINDS, kindColor, positionColor, sideColor } from "./scatter.js";

/** Steps of the ramp of positions. */
const STEPS = [0, 0.25, 0.5, 0.75, 1];

export class Legend {
  constructor() {
    this.root = element("ul", { class: "joint-legend" });
    this.shown = "";
  }

  /**
   * @param {"side" | "position" | "token"} tint
   * @param {"light" | "dark"} theme
   */
  show(tint, theme) {
    if (this.shown === `${tint} ${theme}`) return;
    this.shown = `${tint} ${theme}`;
    const shapes = [sample("query", tint === "side" ? sideColor("query", theme) : "", "query"), sample("key", tint === "side" ? sideColor("key", theme) : "", "key")];
    const colors = {
      side: () => [],
      position: () => [element("li", {}, ["first", ...STEPS.map((part) => patch(positionColor(part, theme))), "last"])],
      token: () => KINDS.map(({ id, label }) => element("li", {}, [patch(kindColor(id, theme)), label])),
    }[tint]();
    this.root.replaceChildren(...shapes, ...colors, element("li", { class: "joint-own" }, ["ring: the text of this page"]));
  }
}

/**
 * @param {"query" | "key"} side
 * @param {string} color  "": that of the style
 * @param {string} label
 */
function sample(side, color, label) {
  const mark = element("span", { class: `joint-mark ${side}`, "aria-hidden": "true" });
  mark.style.backgroundColor = color;
  return element("li", {}, [mark, label]);
}

/** @param {string} color */
function patch(color) {
  const made = element("span", { class: "joint-patch", "aria-hidden": "true" });
  made.style.backgroundColor = color;
  return made;
}
