/** Tables to take away: RFC 4180, and nothing that a spreadsheet would run. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { cell, toCsv } from "../../viz/static/core/export/figure.js";

test("texts are quoted, and quotes doubled", () => {
  assert.equal(cell('say "hi", twice'), '"say ""hi"", twice"');
});

test("what a spreadsheet would take for a formula gets an apostrophe", () => {
  for (const sign of ["=", "+", "-", "@", "＝"]) assert.equal(cell(`${sign}1+1`), `"'${sign}1+1"`);
  assert.equal(cell(" \t=1"), `" \t'=1"`);
  assert.equal(cell("a;=1"), `"a;'=1"`);
  assert.equal(cell("a=1"), '"a=1"');
});

test("characters that no text file holds are shown", () => {
  assert.equal(cell("a\u0000b\ud800"), '"a␀b⟨U+D800⟩"');
});

test("lines end in CR LF, and a long table comes in portions that are one table", () => {
  const rows = Array.from({ length: 10000 }, (_, i) => [i, `t${i}`]);
  const portions = toCsv({ columns: ["place", "token"], rows: () => rows });
  assert.ok(portions.length > 1);
  const expected = ['"place","token"', ...rows.map(([i, text]) => `${i},"${text}"`)].map((line) => `${line}\r\n`).join("");
  assert.equal(portions.join(""), expected);
});
