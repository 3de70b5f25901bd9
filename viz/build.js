/**
 * Bundles and minifies what a page is made of: `npm run build` writes static/ into built/.
 *
 * With --check nothing is written: it fails where a committed file is not what the source gives.
 */

import { Buffer } from "node:buffer";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { parse } from "acorn";
import { main } from "assemblyscript/asc";
import { build } from "esbuild";

const FOLDER = dirname(fileURLToPath(import.meta.url));
const BUILT = join(FOLDER, "built");
const ENTRIES = ["page", "vectors", "layers", "survey", "live", "served", "story"];
// What runs the model of a live page; it has no style.
const WORKERS = ["worker"];

const { page: german } = JSON.parse(await readFile(join(FOLDER, "..", "minibert", "languages", "de.json"), "utf8"));
// A word in small letters may be a name too: where it is a text, the source itself has `translated`.
const SAID = new Set(Object.keys(german).filter((text) => !/^[a-z]+$/.test(text)));

/** A module with `translated` before each of its texts that SAID has. @param {string} source */
function marked(source) {
  /** @type {[number, number, string][]} */
  const marks = [];
  const visit = (/** @type {any} */ node) => {
    if (!node || typeof node !== "object") return;
    const { type, start, end, value } = node;
    if (type === "Literal" && SAID.has(value)) marks.push([start, end, `translated\`${value.replace(/[\\`]|\$\{/g, "\\$&")}\``]);
    if (type === "TemplateLiteral" && SAID.has(node.quasis.map((/** @type {any} */ { value: { cooked } }, /** @type {number} */ i) => (i ? `{${i - 1}}` : "") + cooked).join(""))) marks.push([start, start, "translated"]);
    // The name of a property, and what is marked already.
    const { key, quasi, ...parts } = node;
    for (const part of [...Object.values(parts), ...(quasi?.expressions ?? []), ...(node.computed ? [key] : [])]) visit(part);
  };
  visit(parse(source, { ecmaVersion: "latest", sourceType: "module" }));
  const made = marks.sort((one, other) => other[0] - one[0]).reduce((text, [start, end, mark]) => text.slice(0, start) + mark + text.slice(end), source);
  return /^import \{ translated \}/m.test(source) || !marks.length ? made : `import { translated } from ${JSON.stringify(join(FOLDER, "static", "core", "text", "translated.js"))};${made}`;
}

/** @type {import("esbuild").Plugin} */
const marking = {
  name: "translated",
  setup: ({ onLoad }) => onLoad({ filter: /static.*\.js$/ }, async ({ path }) => ({ contents: marked(await readFile(path, "utf8")) })),
};

/**
 * @param {string} entry  a file of static/
 * @param {import("esbuild").BuildOptions} [more]
 * @returns {Promise<string>}
 */
async function bundled(entry, more = {}) {
  const { outputFiles } = await build({
    absWorkingDir: FOLDER,
    entryPoints: [`static/${entry}`],
    bundle: true,
    charset: "utf8",
    format: "iife",
    legalComments: "inline",
    logLevel: "warning",
    minify: true,
    outdir: "built",
    plugins: [marking],
    target: "es2022",
    write: false,
    ...more,
  });
  const [{ text }] = outputFiles;
  // These stand in an HTML element as they are; the others are packed.
  if (entry.startsWith("open_") && /<\/|<!--/.test(text)) throw new Error(`${entry}: '</' and '<!--' may not occur in a page`);
  return text;
}

/** What is bundled of others, with the licence that it comes under. */
async function notice() {
  const folder = join(FOLDER, "node_modules", "@huggingface", "tokenizers");
  const { name, version, author } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  return `/*! With ${name} ${version} by ${author}, under this licence:\n${await readFile(join(folder, "LICENSE"), "utf8")}*/`;
}

/** static/engine/simd.ts as WebAssembly, in base64. @param {string[]} more  features beside SIMD */
async function compiled(more) {
  /** @type {Uint8Array[]} */
  const written = [];
  const source = join(FOLDER, "static", "engine", "simd.ts");
  const features = ["simd", ...more].flatMap((feature) => ["--enable", feature]);
  const { error, stderr } = await main([source, ...features, "-O3", "--noAssert", "--runtime", "stub", "--importMemory", "--outFile", "simd.wasm"], {
    writeFile: (_, contents) => void written.push(/** @type {Uint8Array} */ (contents)),
  });
  if (error) throw new Error(`simd.ts: ${error.message}\n${stderr}`);
  return Buffer.concat(written).toString("base64");
}

/** The text of each file of built/, by its name. */
async function files() {
  const made = ENTRIES.flatMap((name) => [
    [`${name}.js`, bundled(`${name}.js`)],
    [`${name}.css`, bundled(`${name}.css`, { target: "esnext" })],
  ]);
  const define = { "globalThis.PRODUCTS": JSON.stringify(await Promise.all([["relaxed-simd"], []].map(compiled))) };
  for (const name of WORKERS) made.push([`${name}.js`, bundled(`${name}.js`, { banner: { js: await notice() }, define, plugins: [] })]);
  made.push(["open_page.js", bundled("open_page.js")]);
  return Promise.all(made.map(async ([name, text]) => /** @type {[string, string]} */ ([name, await text])));
}

/** @param {Map<string, string>} made */
async function check(made) {
  const there = await readdir(BUILT).catch(() => []);
  const committed = new Map(await Promise.all(
    there.map(async (name) => /** @type {[string, string]} */ ([name, await readFile(join(BUILT, name), "utf8")])),
  ));
  const names = [...new Set([...there, ...made.keys()])].sort();
  const different = names.filter((name) => committed.get(name) !== made.get(name));
  if (!different.length) return;
  console.error(`viz/built: ${different.join(", ")} differ from what viz/static gives; run 'npm run build' in viz`);
  process.exitCode = 1;
}

const made = new Map(await files());
if (process.argv.includes("--check")) await check(made);
else {
  await mkdir(BUILT, { recursive: true });
  for (const [name, text] of made) await writeFile(join(BUILT, name), text);
}
