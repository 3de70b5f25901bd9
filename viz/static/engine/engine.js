/**
 * What runs a model for a page: one interface for the engine in the file and for the one in Python
 * behind the page. A page never asks which of them it has.
 *
 * @typedef {"masked" | "causal" | "classes" | "none"} Predicts  masked words, the next token, a class of the
 *   whole text, or nothing
 *
 * @typedef {object} Loaded  what is known of a model beside its shape
 * @property {string} model  its name
 * @property {Predicts} predicts
 * @property {number} positions  tokens that fit
 * @property {string | null} mask  the mask token's string
 * @property {boolean} pairs  it takes a second text
 *
 * @typedef {Omit<import("../core/data/source.js").Shape, "predicts"> & Loaded} About  the model, as it was loaded
 *
 * @typedef {"zero" | "mean" | "text" | "set" | "hide"} Change
 *
 * @typedef {object} Edit  one change, in the terms of Python's `edit=`; what is null or absent means all
 * @property {string} quantity  a name of layers/layer.py: "z", "mlp_out", "mlp_post", "probs", "scores", …
 * @property {Change} change
 *   zero: 0. mean: the mean over positions of the same text without edits (probs: of no use, refused).
 *   text: the value that the other text has there (`Request.other`). set: `value`; of probs the other
 *   weights of the row are scaled, so that it sums to 1 again. hide: of scores: the key is masked.
 * @property {number | null} [layer]
 * @property {number | null} [head]
 * @property {number | null} [position]  of scores and probs: the query
 * @property {number | null} [key]  of scores and probs
 * @property {number | null} [neuron]  the last axis: of mlp_pre and mlp_post a neuron, of z a dimension
 * @property {number} [value]
 *
 * @typedef {object} Request
 * @property {string[]} texts  one, or two
 * @property {Edit[]} edits
 * @property {string[]} [other]  the text that edits of change "text" read from
 *
 * @typedef {import("../core/data/source.js").Candidate} Candidate
 *
 * @typedef {object} Prediction  what the model says of one place
 * @property {number} position  the masked token, or the token before the next one
 * @property {Candidate[]} candidates  the most probable first
 *
 * @typedef {object} Run  one pass
 * @property {number} number  names the pass in `read`; an engine keeps the last few passes
 * @property {number[]} ids  of its tokens
 * @property {import("../core/data/data.js").ExampleHeader} header
 * @property {import("../core/data/data.js").Blocks} blocks  they ask the engine when they are looked at
 * @property {Prediction[]} predictions
 *
 * @typedef {import("../core/data/source.js").Numbers} Numbers
 *
 * @typedef {object} Sampling
 * @property {number} temperature  0: the most probable token
 * @property {number | null} topK
 * @property {number | null} topP
 * @property {number} seed
 *
 * @typedef {object} Step  one next token
 * @property {Candidate} chosen
 * @property {Candidate[]} candidates  the most probable, as the model says
 * @property {number[]} drawn  the probability of each of them after temperature, top-k and top-p
 * @property {string} text  the text with the token behind it
 *
 * @typedef {object} Question  what a sweep asks of each head
 * @property {number} position
 * @property {number} id  the token whose log probability is compared
 *
 * @typedef {object} Engine  every promise is rejected with an Error whose message a person can read
 * @property {() => Promise<About>} about
 * @property {(request: Request) => Promise<Run>} trace  one that waits behind a newer one may be rejected with an error
 *   named "AbortError"
 * @property {(run: number, quantity: string, layer: number | null) => Promise<Numbers>} read  any
 *   quantity of the glossary, of a pass that is kept
 * @property {(run: number, position: number) => Promise<Candidate[]>} candidates  what the model says at
 *   any position, as `Prediction` has it
 * @property {(run: number, position: number) => Promise<import("../core/data/source.js").Named>} features  what each
 *   active feature, their biases and the error are there
 * @property {(name: string, layer: number | null, row: number | null) => Promise<Numbers | null>} weights
 *   a weight, by its name in Python below the layer ("attention.query.weight"), or by its whole name
 *   where the layer is null; `row`: one row of its first axis. null: the model has no such weight
 * @property {(request: Request, question: Question) => Promise<Numbers>} sweep  (layer, head): how much the
 *   log probability changes where z of that head is zero as well
 * @property {(request: Request, sampling: Sampling) => Promise<Step>} step
 * @property {(() => void)} close
 */

export {};
