/** How the next token is drawn: temperature, top-k, top-p and a seed. */

import { button, group } from "../core/draw/controls.js";
import { element } from "../core/draw/dom.js";
import { visible } from "../core/text/text.js";

/** @typedef {import("../engine/engine.js").Sampling} Sampling */

/**
 * @param {{sampling: (sampling: Sampling) => void, next: () => void}} acts
 */
export function createSampling({ sampling: change, next }) {
  let now = /** @type {Sampling | null} */ (null);
  const set = (/** @type {Partial<Sampling>} */ part) => now && change({ ...now, ...part });
  const temperature = element("input", { type: "range", min: "0", max: "2", step: "0.05", "aria-label": "Temperature" });
  const told = element("output", { class: "value" });
  const topK = number("Top-k: only so many of the most probable tokens", "all", "1", "1");
  const topP = number("Top-p: only the most probable tokens that have this share", "1", "0.05", "0.05");
  topP.max = "1";
  const seed = number("Seed of the draw", "0", "0", "1");
  temperature.addEventListener("input", () => set({ temperature: Number(temperature.value) }));
  topK.addEventListener("input", () => set({ topK: wholeOf(topK.value) }));
  topP.addEventListener("input", () => set({ topP: shareOf(topP.value) }));
  seed.addEventListener("input", () => set({ seed: wholeOf(seed.value) ?? 0 }));
  const add = button("Add a token", next, { class: "live-act live-next" });
  const another = button("Another seed", () => now && set({ seed: now.seed + 1 }), { class: "live-act" });
  const root = element("div", { class: "live-sampling", role: "group", "aria-label": "Next token" }, [
    group("Temperature", [temperature, told]),
    group("Top-k", [topK]),
    group("Top-p", [topP]),
    group("Seed", [seed]),
    element("div", { class: "live-acts" }, [add, another]),
  ]);
  return {
    root,
    /**
     * @param {Sampling} sampling
     * @param {import("../engine/engine.js").Step | null} step
     */
    update(sampling, step) {
      now = sampling;
      show(temperature, String(sampling.temperature));
      told.textContent = sampling.temperature === 0 ? "0: the best" : sampling.temperature.toFixed(2);
      show(topK, sampling.topK === null ? "" : String(sampling.topK));
      show(topP, sampling.topP === null ? "" : String(sampling.topP));
      show(seed, String(sampling.seed));
      add.disabled = step === null;
      add.textContent = step ? `Add “${visible(step.chosen.text.replace(/^ /, "·"), 20)}”` : "Add a token";
    },
  };
}

/**
 * @param {string} name
 * @param {string} empty  what nothing means
 * @param {string} min
 * @param {string} step
 */
function number(name, empty, min, step) {
  return element("input", { type: "number", class: "live-number", inputmode: "decimal", min, step, placeholder: empty, "aria-label": name, title: name });
}

/**
 * What is being typed stays as it is.
 *
 * @param {HTMLInputElement} field
 * @param {string} value
 */
function show(field, value) {
  const same = field.value === value || (field.value !== "" && value !== "" && Number(field.value) === Number(value));
  if (!same && !(field.matches(":focus") && field.type === "number")) field.value = value;
}

/** @param {string} text */
function wholeOf(text) {
  const value = Number(text);
  return text !== "" && Number.isInteger(value) && value >= 0 ? value || null : null;
}

/** @param {string} text */
function shareOf(text) {
  const value = Number(text);
  return text !== "" && value > 0 && value < 1 ? value : null;
}
