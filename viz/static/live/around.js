/**
 * What a live page is opened with.
 *
 * @typedef {object} Around  what a live page stands in
 * @property {import("../core/frame/kinds.js").Kind[]} kinds
 * @property {import("../core/frame/frame.js").Address} address
 * @property {EventTarget} keys  where key strokes are heard
 * @property {(title: string) => void} named
 * @property {string[]} texts  to begin with
 * @property {string[][]} samples  texts, or pairs of them, that show what a head does
 * @property {import("./static_file.js").Shell | null} shell  of a file without the model; null: none can be made
 */

export {};
