/** What was asked for before, to take changes back and to make them again. */

/** How many steps can be taken back. */
const MOST = 200;
/** Milliseconds within which changes of one kind are one step. */
const TOGETHER = 1200;

/**
 * @template Kept
 */
export class History {
  /**
   * @param {Kept} now
   * @param {() => number} [clock]  milliseconds
   */
  constructor(now, clock = () => performance.now()) {
    this.now = now;
    this.clock = clock;
    /** @type {Kept[]} */
    this.before = [];
    /** @type {Kept[]} */
    this.after = [];
    this.last = { kind: "", at: 0 };
  }

  /**
   * A change. Several of one kind soon after one another are taken back together, as when words are
   * typed or a bar is drawn.
   *
   * @param {Kept} next
   * @param {string} [kind]  "": a step of its own
   */
  change(next, kind = "") {
    const at = this.clock();
    const together = kind !== "" && kind === this.last.kind && at - this.last.at < TOGETHER && this.before.length > 0;
    if (!together) this.before = [...this.before, this.now].slice(-MOST);
    this.after = [];
    this.last = { kind, at };
    this.now = next;
  }

  /** What follows from the present step and is none of its own. @param {Kept} same */
  amend(same) {
    this.now = same;
  }

  undo() {
    const back = this.before.pop();
    if (back === undefined) return false;
    this.after.push(this.now);
    this.now = back;
    this.last = { kind: "", at: 0 };
    return true;
  }

  redo() {
    const again = this.after.pop();
    if (again === undefined) return false;
    this.before.push(this.now);
    this.now = again;
    this.last = { kind: "", at: 0 };
    return true;
  }
}

/**
 * Ctrl-Z, and Ctrl-Shift-Z or Ctrl-Y.
 *
 * @param {EventTarget} target
 * @param {(way: "undo" | "redo") => void} step
 */
export function listenToUndo(target, step) {
  target.addEventListener("keydown", (heard) => {
    const event = /** @type {KeyboardEvent} */ (heard);
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(key)) return;
    // A field's own undo knows nothing of the changes between two words.
    event.preventDefault();
    step(key === "z" && !event.shiftKey ? "undo" : "redo");
  });
}
