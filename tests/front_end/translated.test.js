import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { URL } from "node:url";

import { parse } from "../../viz/node_modules/acorn/dist/acorn.mjs";

const STATIC = new URL("../../viz/static/", import.meta.url);
const { page: german } = JSON.parse(readFileSync(new URL("../../minibert/languages/de.json", import.meta.url), "utf8"));
// What viz/document.py and viz/live.py say themselves.
const OF_PYTHON = /^(This page draws its pictures with|Matrices are stored|, logits by at most)/;
// Texts that are read by a model, and code.
const NOT_SAID = /^(The (boys?|old) \[MASK\]|The \{0\} \[MASK\]|Set the weight of one key; scale)/;

/** Every text of a module; what is put in as {0}, {1} ... */
function textsOf(source) {
  const found = [];
  const visit = (node) => {
    if (!node || typeof node !== "object") return;
    if (node.type === "Literal" && typeof node.value === "string") found.push(node.value);
    if (node.type === "TemplateLiteral") found.push(node.quasis.map(({ value }, i) => (i ? `{${i - 1}}` : "") + value.cooked).join(""));
    Object.values(node).forEach(visit);
  };
  visit(parse(source, { ecmaVersion: "latest", sourceType: "module" }));
  return found;
}

const files = readdirSync(STATIC, { recursive: true }).filter((name) => name.endsWith(".js") && !/^(engine(?!\/in_file)|survey|views\/survey|open_page|worker)/.test(name));
const texts = new Set(files.flatMap((name) => textsOf(readFileSync(new URL(name, STATIC), "utf8"))));

test("every sentence of the pages has one in German", () => {
  const sentences = [...texts].filter((text) => /^[“✓✗≈]?[A-Z][^<>="]*[a-z:] [^<>="]*[a-z]/.test(text) && !NOT_SAID.test(text));
  assert.ok(sentences.length > 250);
  assert.deepEqual(sentences.filter((text) => !(text in german)), []);
});

test("nothing is left over in German", () => {
  assert.deepEqual(Object.keys(german).filter((text) => !texts.has(text) && !OF_PYTHON.test(text)), []);
});

test("the same is put in, and spaces at the ends are kept", () => {
  const put = (text) => [...text.matchAll(/\{\d\}/g)].map(([place]) => place).sort();
  for (const [english, said] of Object.entries(german)) {
    assert.deepEqual(put(said), put(english), english);
    assert.equal(/^\s/.test(said), /^\s/.test(english), english);
  }
});
