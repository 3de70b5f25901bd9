/**
 * Runs what is asked for, the newest first: while one run goes on only the last of the wishes is
 * kept, and every run that ends is shown, so that fast typing is followed and not waited for.
 */

export class Runner {
  /**
   * @param {() => Promise<void>} run  one run of what is asked for now
   * @param {(error: unknown) => void} failed
   * @param {() => void} [rested]  called when all that was asked for is done
   */
  constructor(run, failed, rested = () => {}) {
    this.run = run;
    this.rested = rested;
    this.failed = failed;
    this.wanted = false;
    /** @type {Promise<void> | null} */
    this.going = null;
  }

  /** Asks for a run; done when no run is asked for any more. */
  ask() {
    this.wanted = true;
    this.going ??= this.work().finally(() => {
      this.going = null;
      this.rested();
    });
    return this.going;
  }

  async work() {
    while (this.wanted) {
      this.wanted = false;
      try {
        await this.run();
      } catch (error) {
        const aborted = error instanceof Error && error.name === "AbortError";
        if (!aborted && !this.wanted) this.failed(error);
      }
    }
  }
}
