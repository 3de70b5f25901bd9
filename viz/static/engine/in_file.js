/**
 * The engine in the file, on the side of the page: it asks a worker.
 *
 * @typedef {import("./engine.js").Engine} Engine
 * @typedef {{resolve: (result: any) => void, reject: (error: Error) => void}} Waiting
 */

/** What the worker answers as it is asked. */
const ASKED = /** @type {const} */ (["about", "read", "candidates", "features", "weights", "sweep", "step"]);

class Asking {
  /** @param {Worker} worker */
  constructor(worker) {
    this.worker = worker;
    this.count = 0;
    /** @type {Map<number, Waiting>} */
    this.waiting = new Map();
    /** Why no more answers come; empty while they do. */
    this.ended = "";
    /** Told how much of a folder is read. @type {(share: number) => void} */
    this.progress = () => {};
    worker.onmessage = ({ data }) => ("progress" in data ? this.progress(data.progress) : this.hear(data));
    worker.onerror = (event) => this.end(event.message || "the model could not be started");
  }

  /** @param {import("./local.js").Answer} answer */
  hear({ call, result, error }) {
    const waiting = this.waiting.get(call);
    this.waiting.delete(call);
    if (error === undefined) waiting?.resolve(result);
    else waiting?.reject(new Error(error));
  }

  /** @param {string} message */
  end(message) {
    this.ended = message;
    for (const { reject } of this.waiting.values()) reject(new Error(message));
    this.waiting.clear();
  }

  /** @param {import("./local.js").Method} method @param {any[]} given @returns {Promise<any>} */
  ask(method, ...given) {
    this.count += 1;
    const call = this.count;
    return new Promise((resolve, reject) => {
      if (this.ended) return void reject(new Error(this.ended));
      this.waiting.set(call, { resolve, reject });
      this.worker.postMessage({ call, method, given });
    });
  }
}

/**
 * A worker that a page in one file can start: its script has no address of its own.
 *
 * @param {string} script  worker.js
 */
export function workerOf(script) {
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  return new Worker(address);
}

/**
 * @param {Worker} worker  which runs worker.js
 * @param {import("./local.js").Held} held
 * @param {(share: number) => void} [progress]  of a folder's weights
 * @returns {Engine}
 */
export function engineInFile(worker, held, progress = () => {}) {
  const asking = new Asking(worker);
  asking.progress = progress;
  worker.postMessage({ held }, "weights" in held ? [held.weights] : []);
  const asked = Object.fromEntries(ASKED.map((method) => [method, (/** @type {any[]} */ ...given) => asking.ask(method, ...given)]));
  /** What the picture of the last run asked for first: it comes with the next run. @type {string | null} */
  let first = null;
  return /** @type {Engine} */ ({
    ...asked,
    async trace(request) {
      const { block, ...traced } = await asking.ask("trace", request, first);
      const brought = new Map([[first, block]]);
      const bytes = async (/** @type {string} */ name, /** @type {number[]} */ ...part) => {
        if (brought.size && name !== "lens") first = name;
        const there = part.length ? null : brought.get(name);
        brought.clear();
        return there ?? asking.ask("bytes", traced.number, name, ...part);
      };
      return { ...traced, blocks: { bytes } };
    },
    close() {
      worker.terminate();
      asking.end("the engine was closed");
    },
  });
}
