/** A page as it is, as a file of its own: the same scripts and the numbers of the runs, no model. */

import { deflate, toBase85 } from "../core/data/packed.js";

/**
 * @typedef {object} Shell  what every file of these scripts has
 * @property {string} policy  its Content-Security-Policy
 * @property {string} opening  the script that unpacks the others
 * @property {string} code  the others, packed
 *
 * @typedef {Pick<import("../core/data/example.js").Example, "header" | "blocks" | "lens">} Held  the numbers of a run
 */

/**
 * The HTML of the file.
 *
 * @param {Shell} shell
 * @param {Held[]} examples
 * @param {{title: string | null, view: string, start: string}} opening
 */
export async function staticFile({ policy, opening: script, code }, examples, opening) {
  /** @type {[string, string][]} */
  const blocks = [];
  const entries = await Promise.all(examples.map((example, i) => packedExample(example, i, blocks)));
  const header = JSON.stringify({ ...opening, format: 2, examples: entries });
  const packed = toBase85(await deflate(new TextEncoder().encode(header)));
  return [
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    `<meta http-equiv="Content-Security-Policy" content="${policy}">\n`,
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"generator\" content=\"minibert\">\n",
    "<link rel=\"icon\" href=\"data:,\">\n<title>Attention</title>\n</head>\n<body>\n<main id=\"page\"></main>\n",
    block("header", packed),
    block("code", code),
    `<script>${script}</script>\n`,
    ...blocks.map(([name, text]) => block(name, text)),
    "</body>\n</html>\n",
  ].join("");
}

/**
 * @param {string} id
 * @param {string} text  nothing that means something to HTML
 */
function block(id, text) {
  return `<script type="application/octet-stream" id="${id}">${text}</script>\n`;
}

/**
 * The header of an example whose bytes are put among the blocks.
 *
 * @param {Held} example
 * @param {number} index
 * @param {[string, string][]} blocks
 */
async function packedExample(example, index, blocks) {
  const { header, blocks: from } = example;
  const arrays = [];
  for (const entry of header.arrays) {
    const bytes = await from.bytes(entry.block);
    // Codes pack well; the last bits of other numbers look random.
    const packs = entry.packing === "none" && entry.dtype === "uint8";
    const name = `e${index}-${entry.block.replace(/[^\w-]/g, "-")}`;
    blocks.push([name, toBase64(packs ? await deflate(bytes) : bytes)]);
    arrays.push({ ...entry, block: name, packing: packs ? "deflate" : entry.packing });
  }
  return { ...header, arrays, lens: await example.lens() };
}

/** @param {Uint8Array} bytes */
function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}
