/**
 * The engine behind the page: a model in Python, asked over one websocket (viz/serve/).
 *
 * A message is JSON with a number; its answer comes back with that number as one binary frame
 * (viz/serve/connection.py). Each message holds the whole request, so that the server can forget a pass. After a
 * connection broke the next question opens another.
 *
 * @typedef {import("./engine.js").Engine} Engine
 * @typedef {import("./engine.js").Request} Request
 *
 * @typedef {object} Answer
 * @property {any} body
 * @property {Map<string, Uint8Array>} blocks  their bytes, each in a buffer of its own
 *
 * @typedef {object} Asked
 * @property {string} message
 * @property {(answer: Answer) => void} resolve
 * @property {(error: Error) => void} reject
 * @property {string} kind
 * @property {boolean} sent
 */

import { once } from "../core/data/example.js";

const GONE = "The server does not answer. Is it still running? Started anew it has another address.";
/** Passes whose requests are remembered, for `read`. */
const KEPT = 16;
/** Blocks and numbers that are asked for at once; the server has a limit, and a model many layers. */
const AT_ONCE = 24;
/** Of these the server answers the newest, and refuses those before it; they wait for no blocks. */
const NEWEST_WINS = ["trace", "sweep", "step"];
/** Codes of a connection that would only be closed again. */
const FINAL = new Map([
  [1007, "The server did not understand the page; reload it."],
  [1009, "The text is too long for the server."],
  [1013, "Too many pages are open before this server; close one and reload this page."],
]);

/**
 * The address of the engine of the server that a page came from, with the page's token.
 *
 * @param {string} page  the page's address
 */
export function engineAddress(page) {
  const address = new URL("engine", page);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  address.search = new URL(page).search;
  address.hash = "";
  return address.href;
}

/** @implements {Engine} */
export class ServedEngine {
  /**
   * @param {string} address  of the websocket
   * @param {(address: string) => WebSocket} [open]
   */
  constructor(address, open = (to) => new WebSocket(to)) {
    this.address = address;
    this.open = open;
    /** @type {Map<number, Asked>} */
    this.asked = new Map();
    /** @type {Map<number, Request>} */
    this.runs = new Map();
    this.number = 0;
    this.shown = "probs-0";
    this.closed = "";
    this.connect();
  }

  async about() {
    return (await this.ask("about", {})).body;
  }

  /** @param {Request} request @returns {Promise<import("./engine.js").Run>} */
  async trace(request) {
    const { body, blocks } = await this.ask("trace", { request, blocks: [this.shown] });
    this.number += 1;
    const number = this.number;
    this.runs.set(number, request);
    for (const oldest of [...this.runs.keys()].slice(0, -KEPT)) this.runs.delete(oldest);
    return { number, ...body, blocks: this.blocksOf(request, blocks) };
  }

  /**
   * The blocks of a pass: each is asked for when it is first looked at.
   *
   * @param {Request} request
   * @param {Map<string, Uint8Array>} there
   * @returns {import("../core/data/data.js").Blocks}
   */
  blocksOf(request, there) {
    /** @type {Map<string, Promise<Uint8Array>>} */
    const known = new Map([...there].map(([name, bytes]) => [name, Promise.resolve(bytes)]));
    const whole = (/** @type {string} */ name) => {
      if (name.startsWith("probs-")) this.shown = name;
      return once(known, name, () => this.block(request, name));
    };
    return {
      bytes: async (/** @type {string} */ name, /** @type {number} */ from = 0, /** @type {number | undefined} */ to = undefined) =>
        (await whole(name)).slice(from, to),
    };
  }

  /** @param {Request} request @param {string} name */
  async block(request, name) {
    const { blocks } = await this.ask("block", { request, blocks: [name] });
    return /** @type {Uint8Array} */ (blocks.get(name));
  }

  /** @param {number} run @param {string} quantity @param {number | null} layer */
  async read(run, quantity, layer) {
    return numbersOf(await this.ask("read", { request: this.requestOf(run), quantity, layer }));
  }

  /** @param {number} run */
  requestOf(run) {
    const request = this.runs.get(run);
    if (request) return request;
    throw new Error(`Pass ${run} is no longer kept; run the text again.`);
  }

  /** @param {number} run @param {number} position */
  async candidates(run, position) {
    return (await this.ask("candidates", { request: this.requestOf(run), position })).body;
  }

  /** @param {number} run @param {number} position */
  async features(run, position) {
    const { body, blocks } = await this.ask("features", { request: this.requestOf(run), position });
    return { names: body.names, ...numbersOf({ body, blocks }) };
  }

  /** @param {string} name @param {number | null} layer @param {number | null} row */
  async weights(name, layer, row) {
    const answer = await this.ask("weights", { quantity: name, layer, row });
    return answer.body && numbersOf(answer);
  }

  /** @param {Request} request @param {import("./engine.js").Question} question */
  async sweep(request, question) {
    return numbersOf(await this.ask("sweep", { request, question }));
  }

  /** @param {Request} request @param {import("./engine.js").Sampling} sampling */
  async step(request, sampling) {
    return (await this.ask("step", { request, sampling })).body;
  }

  close() {
    this.end("The page has let the model go.");
    this.socket?.close();
  }

  /** @param {string} kind @param {object} question @returns {Promise<Answer>} */
  ask(kind, question) {
    if (this.closed) return Promise.reject(new Error(this.closed));
    if (this.socket?.readyState === 3) this.connect();
    this.number += 1;
    const { number } = this;
    const message = JSON.stringify({ number, ask: kind, ...question });
    return new Promise((resolve, reject) => {
      this.asked.set(number, { message, resolve, reject, kind, sent: false });
      this.send();
    });
  }

  /** Sends what waits, and of blocks and numbers no more than the server takes at once. */
  send() {
    if (this.socket?.readyState !== 1) return;
    let there = [...this.asked.values()].filter(({ sent }) => sent).length;
    for (const asked of this.asked.values()) {
      if (asked.sent || (there >= AT_ONCE && !NEWEST_WINS.includes(asked.kind))) continue;
      asked.sent = true;
      there += 1;
      this.socket?.send(asked.message);
    }
  }

  connect() {
    const socket = this.open(this.address);
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.send();
    socket.onmessage = ({ data }) => this.answered(/** @type {ArrayBuffer} */ (data));
    socket.onclose = ({ code }) => {
      const reason = FINAL.get(code);
      if (reason) this.end(reason);
      else this.rejectAll(this.closed || GONE);
    };
  }

  /** @param {ArrayBuffer} frame */
  answered(frame) {
    const length = new DataView(frame).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(frame, 4, length)));
    const asked = this.asked.get(head.number);
    if (!this.asked.delete(head.number) || !asked) return;
    this.send();
    if (head.error) {
      const { name, message } = head.error;
      return asked.reject(name === "AbortError" ? new DOMException(message, name) : new Error(message));
    }
    let from = 4 + length;
    /** @type {Map<string, Uint8Array>} */
    const blocks = new Map();
    for (const { name, bytes } of head.blocks) {
      blocks.set(name, new Uint8Array(frame.slice(from, from + bytes)));
      from += bytes;
    }
    asked.resolve({ body: head.answer, blocks });
  }

  /** @param {string} reason  what every question gets for an answer from now on */
  end(reason) {
    this.closed ||= reason;
    this.rejectAll(this.closed);
  }

  /** @param {string} reason */
  rejectAll(reason) {
    for (const { reject } of this.asked.values()) reject(new Error(reason));
    this.asked.clear();
  }
}

/** @param {Answer} answer @returns {import("./engine.js").Numbers} */
function numbersOf({ body, blocks }) {
  const bytes = blocks.get("values") ?? new Uint8Array();
  return { shape: body.shape, values: new Float32Array(bytes.buffer) };
}
