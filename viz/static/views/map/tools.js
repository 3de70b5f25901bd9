/** The row above the map: zoom, and which part is seen. */

import { element } from "../../core/draw/dom.js";

/**
 * @param {{nearer: () => void, further: () => void, all: () => void}} act
 */
export function createMapTools(act) {
  const out = step("−", "Zoom out", act.further);
  const all = step("whole map", "Show the whole map", act.all);
  all.className = "quiet";
  const seen = element("output", { class: "map-seen" });
  const steps = element("div", { class: "stepper" }, [out, step("+", "Zoom in", act.nearer)]);
  return {
    root: element("div", { class: "map-tools" }, [steps, seen, all]),
    /**
     * @param {import("../../core/state/window.js").Window} window
     * @param {boolean} whole
     */
    update(window, whole) {
      const [top, bottom, left, right] = window.map(Math.round);
      seen.textContent = whole ? "" : `queries ${top}–${bottom - 1}, keys ${left}–${right - 1}`;
      all.hidden = whole;
      out.disabled = whole;
    },
  };
}

/**
 * @param {string} text
 * @param {string} name
 * @param {() => void} act
 */
function step(text, name, act) {
  const made = element("button", { type: "button", class: "step", "aria-label": name }, [text]);
  made.addEventListener("click", act);
  return made;
}
