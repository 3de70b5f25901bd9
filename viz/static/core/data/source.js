/**
 * What a page before a model has more than one without: any quantity of a run, the model's weights,
 * other texts. Views that need it say so where an example has none.
 *
 * @typedef {object} Built  what a model is built of, where its numbers can be worked out one by one
 * @property {"before" | "after"} norm  LayerNorm stands before attention and MLP, or after each sum
 * @property {number} eps  of LayerNorm
 * @property {string} activation  of the MLP, by its name in Python
 * @property {boolean} segments  embeddings of segments are added
 * @property {boolean} embedNorm  a LayerNorm follows the sum of the embeddings
 * @property {boolean} finalNorm  a LayerNorm stands before the output head
 * @property {boolean} transform  the output head begins with a linear layer, an activation, a LayerNorm
 *
 * @typedef {object} Shape  of a model
 * @property {string} family
 * @property {number} layers
 * @property {number} heads
 * @property {number} dHead
 * @property {number} dModel
 * @property {number} dMlp
 * @property {number} vocabulary  ids
 * @property {"masked" | "causal" | "none"} predicts  which tokens
 * @property {Built | null} built
 *
 * @typedef {object} Numbers
 * @property {number[]} shape  without the batch
 * @property {Float32Array} values
 *
 * @typedef {object} Candidate
 * @property {number} id
 * @property {string} text
 * @property {number} logit
 * @property {number} prob
 *
 * @typedef {object} Collected  a head in many texts: tokens one behind the other
 * @property {{texts: string[], tokens: import("./data.js").Tokens}[]} from  each text, in order
 * @property {number} width  d_head
 * @property {number} scale  scores = scale * query . key
 * @property {boolean} causal
 * @property {number | null} [softCap]  scores are squeezed into -cap to cap
 * @property {[number, number] | null} [window]  keys before and after its own position that a query sees; null: all
 * @property {Float32Array} query  (token, width)
 * @property {Float32Array} key
 *
 * @typedef {object} Source
 * @property {Shape} shape
 * @property {number[]} ids  of the tokens
 * @property {number | null} predicted  the position whose prediction the page is about
 * @property {(quantity: string, layer: number | null) => Promise<Numbers>} read
 * @property {(name: string, layer: number | null, row: number | null) => Promise<Numbers | null>} weights
 * @property {(position: number) => Promise<Candidate[]>} candidates  the most probable first
 * @property {(texts: string[][], layer: number, head: number) => Promise<Collected>} collect
 * @property {Texts} texts
 *
 * @typedef {object} Texts  what is looked at beside the text of the page
 * @property {string[][]} samples
 * @property {string} own  the reader's own, a line each
 * @property {(texts: string[]) => void} open  shows a text in the place of the page's own
 */

export {};
