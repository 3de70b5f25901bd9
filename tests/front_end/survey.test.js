/** The report of a survey: places in plots, what its address holds, and what its sentences say. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { toSvg } from "../../viz/static/core/export/pens.js";
import { layerPanels } from "../../viz/static/marks/layer_dots.js";
import { Survey } from "../../viz/static/views/survey/data.js";
import { layersPart } from "../../viz/static/views/survey/figures.js";
import { assertNear } from "./near.js";

const COLORS = { ink: "#000001", soft: "#000002", faint: "#000003", hair: "#000004", paper: "#ffffff", ground: "#000005" };

function measure(name, mean, more = {}) {
  const none = mean.map(() => null);
  return { name, words: name, source: "", unit: "share", documents: 5, mean, low: none, high: none, examples: mean.map(() => []), ...more };
}

function survey(measures, more = {}) {
  return new Survey({ n_layers: 2, n_heads: 3, documents: ["a", "b"], measures, patterns: [], links: [], pages: "", profile: null, ...more });
}

test("heads stand in their layer, side by side and by number, and the line goes through the means", async () => {
  const mean = [0.1, 0.2, 0.3, 0.5, null, 0.7];
  const plot = layerPanels({
    width: 400, panels: [{ title: "t", mean }], nLayers: 2, nHeads: 3, chosen: -1, color: "#112233", colors: COLORS, text: String,
  });
  assert.deepEqual(plot.points.map(({ place }) => place), [0, 1, 2, 3, 5]);
  const [first, second, third, fourth] = plot.points;
  assert.ok(first.x < second.x && second.x < third.x && third.x < fourth.x);
  assertNear([second.x - first.x], [third.x - second.x], 1e-9);
  // The scale ends at 0.8, so that a step of 0.1 is an eighth of the height.
  assertNear([first.y - second.y, first.y - fourth.y], [172 / 8, 172 / 2], 1e-9);
  const svg = await toSvg({ ...plot, name: "f", paper: "#ffffff", columns: [], rows: () => [] }).text();
  assert.equal(svg.match(/<circle [^>]*fill="#112233"/g).length, 5);
  const [, path] = /d="([^"]*)" fill="none" stroke="#000001"/.exec(svg);
  const [x0, y0, x1, y1] = path.match(/[\d.]+/g).map(Number);
  assertNear([x0, x1], [second.x, (fourth.x + plot.points[4].x) / 2], 0.01);
  assertNear([y0 - y1], [172 / 2], 0.02);
});

test("panels are those that the survey has numbers for, and their sentence names the highest heads", () => {
  const cls = measure("to_cls", [0.1, 0.1, 0.1, 0.6, 0.1, 0.2]);
  const sep = measure("to_sep", [0, 0, 0.5, 0.1, 0.1, 0.1]);
  const nothing = measure("to_previous", [0, 0, 0, 0, 0, 0]);
  const one = survey([cls, sep, nothing]);
  const { figure, sentence, points } = layersPart(one).draw({ width: 700, theme: "light", colors: COLORS, state: { place: 0 } });
  assert.equal(sentence, "Most attention goes to [CLS] in head 1\u20110 (60.0\u202f%) and layer 1 (30.0\u202f% on average), to [SEP] in head 0\u20112 (50.0\u202f%) and layer 0 (16.7\u202f% on average).");
  assert.deepEqual([...figure.rows()].map(([name, , , mean]) => [name, mean]), [cls, sep].flatMap(({ name, mean }) => mean.map((value) => [name, value])));
  assert.equal(points.length, 12);
  assert.equal(layersPart(survey([nothing])), null);
});
