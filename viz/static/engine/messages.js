/**
 * What page and worker say to one another: calls by number, and an answer for each.
 *
 * @typedef {"about" | "trace" | "bytes" | "read" | "candidates" | "weights" | "collect" | "sweep" | "step"} Method
 * @typedef {{call: number, method: Method, given: any[]}} Call
 * @typedef {{call: number, result?: any, error?: string}} Answer
 * @typedef {{held: import("./local.js").Held}} Opening  the first message to a worker
 *
 * @typedef {object} Port  a Worker, or the worker's own side
 * @property {(message: any, transfer?: Transferable[]) => void} postMessage
 * @property {((event: MessageEvent) => void) | null} onmessage
 */

import { LocalEngine } from "./local.js";

/** Methods that take long, and a function that lets other calls in as their last argument. */
const PAUSING = new Set(["sweep", "collect", "bytes"]);

/**
 * Lets the engine of a worker answer the page.
 *
 * @param {Port} port
 */
export function answerPage(port) {
  /** @type {LocalEngine | null} */
  let engine = null;
  /** @type {string} */
  let broken = "the model has not arrived";
  port.onmessage = async ({ data }) => {
    if ("held" in data) {
      try {
        engine = new LocalEngine(data.held);
      } catch (error) {
        broken = messageOf(error);
      }
      return;
    }
    const { call, method, given } = /** @type {Call} */ (data);
    try {
      if (!engine) throw new Error(broken);
      // Between two heads of a sweep, two texts of many, and two layers of a lens, others are answered.
      const more = PAUSING.has(method) ? [turn] : [];
      const result = await /** @type {any} */ (engine)[method](...given, ...more);
      port.postMessage({ call, result }, buffersOf(result));
    } catch (error) {
      port.postMessage({ call, error: messageOf(error) });
    }
  };
}

/**
 * Lets a message in. Not by a timeout, of which browsers make at least 4 ms.
 *
 * @returns {Promise<void>}
 */
function turn() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** What an answer hands over and does not copy. @param {any} result @returns {Transferable[]} */
function buffersOf(result) {
  if (result instanceof Uint8Array) return [result.buffer];
  return result?.values instanceof Float32Array ? [result.values.buffer] : [];
}
