/** The exercises in a live page, which change it as its reader would. */

import { readExercise } from "../address.js";
import { Lab } from "./lab.js";
import { EXERCISES } from "./list.js";
import { Player } from "./player.js";

/**
 * @typedef {object} Page  a live page
 * @property {import("../../engine/engine.js").Engine} engine
 * @property {import("../../engine/engine.js").About} about
 * @property {import("../around.js").Around} around
 * @property {import("../address_bar.js").AddressBar} bar
 * @property {import("../runner.js").Runner} runner
 * @property {import("../workbench.js").Workbench} bench
 * @property {import("../../core/frame/frame.js").Frame | null} frame
 * @property {(part: Partial<import("../asked.js").Asked>) => void} change
 * @property {boolean} typed
 */

export class ExercisesInPage {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    const { engine, about, around, bar, bench } = page;
    const begun = readExercise(around.address.read());
    this.followed = false;
    bar.exercise = () => (this.followed ? this.player.at : begun);
    const lab = new Lab(engine, about, () => page.runner.going ?? Promise.resolve());
    this.player = new Player(EXERCISES, { lab, moved: () => bar.later(), show: (show) => this.show(show) });
    bench.root.querySelector("h1")?.after(this.player.toggle, this.player.root);
  }

  /** Opens what the address says. */
  follow() {
    this.followed = true;
    const { exercise, step } = readExercise(this.page.around.address.read());
    const { at } = this.player;
    if (exercise !== at.exercise || step !== at.step) this.player.go(exercise, step);
  }

  /** @param {import("./exercise.js").Revealed["show"]} show */
  async show({ text, edits = [], view }) {
    const { page } = this;
    page.typed = false;
    page.change({ text, second: null, other: null, edits, place: null, word: null });
    await page.runner.going;
    if (view) page.frame?.store.set({ view: view.view ?? "head", layer: view.layer, heads: [view.head], query: view.query ?? null, key: null, anchor: "query" });
  }
}
