/**
 * The engine in the file, on the side of the worker: a model, the last passes that it ran, and its answers to the
 * page: calls by number, and an answer for each.
 *
 * @import { ExampleHeader } from "../core/data/data.js"
 * @import { Sources } from "./edits.js"
 * @import { About, Numbers, Prediction, Question, Request, Sampling, Step } from "./engine.js"
 * @import { Config, WeightEntry } from "./model.js"
 * @import { Tokens, Vocabulary } from "./tokens.js"
 */

import { bytesOf, candidates, draw, drawnProbs, headerOf, lensOf, namesOf, predictions, predicts, predictsTokens, sweep } from "./answers.js";
import { Plan } from "./edits.js";
import { featuresOf } from "./features.js";
import { readFolder } from "./folder.js";
import { groupOf, Model, Weights } from "./model.js";
import { LAYER_QUANTITIES, Pass } from "./pass.js";
import { rowOf } from "./tensor.js";
import { Tokenizer } from "./tokens.js";

/**
 * @typedef {object} InFile  all that a page holds of a model
 * @property {Config} config
 * @property {Vocabulary} vocabulary
 * @property {WeightEntry[]} entries
 * @property {ArrayBuffer} weights
 *
 * @typedef {{files: Map<string, Blob>, name: string, tables: any}} Folder  a model that is dropped, and what it is read by
 * @typedef {InFile | Folder} Held
 *
 * @typedef {{number: number, ids: number[], header: ExampleHeader, predictions: Prediction[],
 *   block: Uint8Array | null}} Traced  a Run with one of its blocks
 */

/** Passes that are kept: before and after, of the text and of a few before it; of long texts and large models fewer. */
const KEPT = 8;
const LEAST = 3;
const NUMBERS = 2 ** 22;

/**
 * The passes that were looked at last.
 *
 * @template Name
 * @extends {Map<Name, Pass>}
 */
class Kept extends Map {
  /** Keeps a pass as the newest, and lets the oldest go. @param {Name} name @param {Pass} pass */
  put(name, pass) {
    this.delete(name);
    this.set(name, pass);
    let [count, numbers] = [0, 0];
    for (const [older, { size }] of [...this].reverse()) {
      [count, numbers] = [count + 1, numbers + size];
      if (count > KEPT || (count > LEAST && numbers > NUMBERS)) this.delete(older);
    }
    return pass;
  }
}

export class LocalEngine {
  /** @param {{config: Config, vocabulary: Vocabulary, weights: Weights}} parts */
  constructor({ config, vocabulary, weights }) {
    const unknown = Object.keys(config.quantities).filter((name) => !(name in LAYER_QUANTITIES || name === "embed" || name === "logits"));
    if (unknown.length) throw new Error(`this page's engine does not compute ${unknown.join(", ")}, which Python's table has`);
    this.config = config;
    this.tokenizer = new Tokenizer(vocabulary);
    this.held = weights;
    this.model = new Model(config, this.held);
    /** By their numbers. @type {Kept<number>} */
    this.passes = new Kept();
    /** Those without edits, by their texts. @type {Kept<string>} */
    this.clean = new Kept();
    this.count = 0;
    /** A trace and the next token of the same request follow one another. @type {{name: string, pass: Pass} | null} */
    this.edited = null;
  }

  /** @returns {About} */
  about() {
    const { config, tokenizer } = this;
    return {
      model: config.name,
      family: config.family,
      predicts: predicts(config),
      layers: config.n_layers,
      heads: config.n_heads,
      dHead: config.d_head,
      dModel: config.d_model,
      dMlp: config.d_mlp,
      positions: config.n_positions,
      vocabulary: predicts(config) === "classes" ? config.labels.length : config.vocab_size,
      mask: tokenizer.mask === null ? null : tokenizer.raw(tokenizer.mask),
      pairs: config.n_segments > 1,
      built: config.built,
      features: config.features?.writes ?? null,
    };
  }

  /** @param {Request} request @param {string | null} [first]  a block that comes with it @returns {Traced} */
  trace(request, first = null) {
    const pass = this.run(request);
    this.count += 1;
    this.passes.put(this.count, pass);
    return { number: this.count, ids: pass.tokens.ids, header: headerOf(pass), predictions: predictions(pass, this.tokenizer), block: first === null ? null : bytesOf(pass, first) };
  }

  /** The pass of a request; of the same text without edits it is run once, and the last one with edits is kept. @param {Request} request @returns {Pass} */
  run(request) {
    const { texts, edits, other } = request;
    const clean = this.cleanPass(texts);
    if (!edits.length) return clean;
    const name = JSON.stringify([texts, edits, other]);
    if (this.edited?.name === name) return this.edited.pass;
    const plan = new Plan(edits, this.config, clean.length, this.sources(clean, other));
    const pass = new Pass(this.model, clean.tokens, plan, clean);
    this.edited = { name, pass };
    return pass;
  }

  /** @param {Pass} clean @param {string[]} [other] @returns {Sources} */
  sources(clean, other) {
    const another = () => {
      if (!other) throw new Error("an edit reads from another text, and none is given");
      return this.cleanPass(other);
    };
    return { clean: () => clean, other: another };
  }

  /** @param {string[]} texts */
  cleanPass(texts) {
    const name = JSON.stringify(texts);
    return this.clean.put(name, this.clean.get(name) ?? this.newPass(texts));
  }

  /** @param {string[]} texts */
  newPass(texts) {
    if (texts.length < 1 || texts.length > 2) throw new Error(`${texts.length} texts: expected one, or two`);
    const tokens = this.tokenizer.tokens(texts, this.config.n_positions);
    return new Pass(this.model, tokens, new Plan([], this.config, 0), null, undefined, this.pastsOf(tokens));
  }

  /** What is known of these tokens, as long as none looks ahead: of a text that is typed all but the last. @param {Tokens} tokens */
  pastsOf(tokens) {
    if (!this.config.causal) return [];
    const begun = [...this.clean.values()].map((pass) => ({ pass, count: sharedTokens(tokens, pass.tokens) }));
    const [nearest] = begun.sort((one, other) => other.count - one.count);
    return nearest?.count ? nearest.pass.layers.map(({ computed: known }) => ({ known, count: nearest.count })) : [];
  }

  /** @param {number} number */
  pass(number) {
    const pass = this.passes.get(number);
    if (!pass) throw new Error(`pass ${number} is not kept any more; run it again`);
    return pass;
  }

  /** @param {number} number @param {string} name @param {number} [from] @param {number} [to] @param {() => Promise<void>} [pause] */
  async bytes(number, name, from, to, pause = async () => {}) {
    const pass = this.pass(number);
    if (name !== "lens" || !predictsTokens(this.config)) return bytesOf(pass, name, from, to);
    return new TextEncoder().encode(JSON.stringify(await lensOf(pass, this.tokenizer, pause))).slice(from, to);
  }

  /** @param {number} number @param {string} quantity @param {number | null} layer @returns {Numbers} */
  read(number, quantity, layer) {
    const { shape, values } = this.pass(number).read(quantity, layer);
    return { shape, values: values.slice() };
  }

  /** @param {number} number @param {number} position */
  candidates(number, position) {
    const pass = this.pass(number);
    if (!(position >= 0 && position < pass.length)) throw new RangeError(`position ${position}: the text has ${pass.length} tokens`);
    if (predicts(this.config) === "none") throw new Error(`${this.config.name} has no head that predicts anything`);
    return candidates(pass.logitsAt(position), namesOf(this.config, this.tokenizer));
  }

  /** @param {number} number @param {number} position */
  features(number, position) {
    const { features } = this.config;
    if (!features) throw new Error("this page was made without features");
    const rows = [features.reads, features.writes].map(([quantity, layer]) => rowOf(this.pass(number).read(quantity, layer), position).values);
    return featuresOf(features, this.held, rows[0], rows[1]);
  }

  /** @param {string} name @param {number | null} layer @param {number | null} row @returns {Numbers | null} */
  weights(name, layer, row) {
    const { n_layers: layers, n_layer_groups: groups } = this.config;
    return this.held.row(layer === null ? name : `body.groups.${groupOf(layer, layers, groups)}.${name}`, row);
  }

  /** @param {Request} request @param {Question} question @param {() => Promise<void>} [pause] */
  async sweep(request, question, pause = async () => {}) {
    const clean = this.cleanPass(request.texts);
    const pass = this.run(request);
    return sweep(pass, request.edits, this.sources(clean, request.other), question, pause);
  }

  /** @param {Request} request @param {Sampling} sampling @returns {Step} */
  step(request, sampling) {
    if (predicts(this.config) !== "causal") throw new Error(`${this.config.name} predicts no next token`);
    const pass = this.run(request);
    const { ids, cut } = pass.tokens;
    if (cut || ids.length >= this.config.n_positions) {
      throw new Error(`the model has ${this.config.n_positions} positions, so there is no room for another token`);
    }
    const logits = pass.logitsAt(ids.length - 1).subarray(0, this.tokenizer.size);
    const probs = drawnProbs(logits, sampling);
    const listed = candidates(logits, this.tokenizer);
    const id = draw(probs, sampling.seed, ids.length);
    const chosen = listed.find((one) => one.id === id) ?? candidates(logits, this.tokenizer, [id])[0];
    return { chosen, candidates: listed, drawn: listed.map((one) => probs[one.id]), text: this.tokenizer.decode([...ids, id]) };
  }
}

/**
 * How many tokens two texts begin with that are the same; of the first text one is left to be computed.
 *
 * @param {Tokens} one
 * @param {Tokens} other
 */
function sharedTokens(one, other) {
  const most = Math.min(one.ids.length - 1, other.ids.length);
  let count = 0;
  while (count < most && one.ids[count] === other.ids[count] && one.segments[count] === other.segments[count]) count += 1;
  return count;
}

/**
 * @typedef {"about" | "trace" | "bytes" | "read" | "candidates" | "features" | "weights" | "sweep" | "step"} Method
 * @typedef {{call: number, method: Method, given: any[]}} Call
 * @typedef {{call: number, result?: any, error?: string}} Answer
 * @typedef {{held: Held}} Opening  the first message to a worker; while it reads a folder it says how much: {progress}
 *
 * @typedef {object} Port  a Worker, or the worker's own side
 * @property {(message: any, transfer?: Transferable[]) => void} postMessage
 * @property {((event: MessageEvent) => void) | null} onmessage
 */

/** Methods that take long, and a function that lets other calls in as their last argument. */
const PAUSING = new Set(["sweep", "bytes"]);

/** @param {Held} held @param {(share: number) => void} progress */
async function opened(held, progress) {
  if ("files" in held) return new LocalEngine(await readFolder(held.files, held.tables, held.name, progress));
  return new LocalEngine({ ...held, weights: Weights.ofBytes(held.entries, held.weights) });
}

/** Lets the engine of a worker answer the page. @param {Port} port */
export function answerPage(port) {
  /** @type {Promise<LocalEngine>} */
  let opening = Promise.reject(new Error("the model has not arrived"));
  opening.catch(() => {});
  port.onmessage = async ({ data }) => {
    if ("held" in data) {
      opening = opened(data.held, (progress) => port.postMessage({ progress }));
      opening.catch(() => {});
      return;
    }
    const { call, method, given } = /** @type {Call} */ (data);
    try {
      const engine = await opening;
      // Between two heads of a sweep, two texts of many, and two layers of a lens, others are answered.
      const more = PAUSING.has(method) ? [turn] : [];
      const result = await /** @type {any} */ (engine)[method](...given, ...more);
      // Numbers are handed over and not copied.
      const values = result instanceof Uint8Array ? result : result?.values;
      port.postMessage({ call, result }, ArrayBuffer.isView(values) ? [/** @type {ArrayBuffer} */ (values.buffer)] : []);
    } catch (error) {
      port.postMessage({ call, error: error instanceof Error ? error.message : String(error) });
    }
  };
}

/** Lets a message in. Not by a timeout, of which browsers make at least 4 ms. @returns {Promise<void>} */
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
