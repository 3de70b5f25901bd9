/**
 * One box of the diagram: what it does in words, a small picture of its numbers, and where it leads.
 *
 * @typedef {Partial<import("../../core/state/state.js").State>} Way
 *
 * @typedef {object} Cells  a row of the picture
 * @property {string} name
 * @property {ArrayLike<number>[]} parts  one vector, or one of each head
 * @property {number} scale  the number with the strongest colour
 * @property {number} [head]  whose colour they have, where they are weights
 * @property {number} [groups]  in which the vectors of heads stand, where several share a key-value head
 *
 * @typedef {object} Box
 * @property {string} id
 * @property {string} title
 * @property {string} name  of the quantity
 * @property {string} says
 * @property {Cells[]} rows
 * @property {string} [fact]  one thing that is seen
 * @property {HTMLElement[]} [more]
 * @property {Way} way
 * @property {string} leads  the view that opens, in a word
 * @property {"box" | "stream" | "sum" | "norm"} [kind]
 */

import { penOn } from "../../core/draw/canvas.js";
import { headColor, withAlpha } from "../../core/draw/colors.js";
import { cssColors } from "../../core/draw/css_colors.js";
import { element } from "../../core/draw/dom.js";
import { shadeTable } from "../../core/draw/sign_colors.js";
import { drawStrip } from "../../marks/strips.js";

/** CSS pixels of a row of cells, between rows, between the parts of heads, and between groups of them. */
const [ROW, APART, GAP, BETWEEN_GROUPS] = [13, 4, 3, 11];

/**
 * @param {Box} box
 * @param {{theme: () => "light" | "dark", go: (way: Way) => void, can: (way: Way) => boolean}} around
 * @returns {{root: HTMLElement, paint: () => void}}
 */
export function boxOf(box, { theme, go, can }) {
  const { id, title, name, says, rows, fact, more = [], way, leads, kind = "box" } = box;
  const canvas = element("canvas", { "aria-hidden": "true" });
  const names = element("span", { class: "whole-names", "aria-hidden": "true" }, rows.map((row) => element("span", {}, [row.name])));
  const picture = element("span", { class: rows.some((row) => row.name) ? "whole-cells named" : "whole-cells" }, [names, canvas]);
  const open = can(way);
  const root = element("button", { type: "button", class: `whole-box ${kind}`, "data-box": id }, [
    element("span", { class: "whole-title" }, [title, ...(name ? [" ", element("code", {}, [name])] : [])]),
    element("span", { class: "whole-says" }, [says]),
    ...(rows.length ? [picture] : []),
    ...more,
    ...(fact ? [element("span", { class: "whole-fact" }, [fact])] : []),
    element("span", { class: "whole-leads" }, [open && leads ? `${leads} →` : ""]),
  ]);
  root.disabled = !open;
  root.addEventListener("click", () => go(way));
  return { root, paint: () => rows.length && paintCells(canvas, rows, theme()) };
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Cells[]} rows
 * @param {"light" | "dark"} theme
 */
export function paintCells(canvas, rows, theme) {
  const width = canvas.parentElement ? roomOf(canvas) : 0;
  if (width < 4) return;
  const { ground, soft } = cssColors(canvas);
  const pen = penOn(canvas, width, rows.length * (ROW + APART) - APART);
  rows.forEach(({ parts, scale, head, groups = parts.length }, i) => {
    const shades = head === undefined ? shadeTable(theme) : shadesOf(headColor(head, theme));
    const top = i * (ROW + APART);
    const inGroup = parts.length / groups;
    const gap = rows[0].groups ? BETWEEN_GROUPS : GAP;
    const group = (width - gap * (groups - 1)) / groups;
    const own = (group - GAP * (inGroup - 1)) / inGroup;
    if (rows[0].groups) drawBorders(pen, { groups, group, top, tall: ROW + APART }, soft);
    parts.forEach((numbers, part) => {
      const left = Math.floor(part / inGroup) * (group + gap) + (part % inGroup) * (own + GAP);
      drawStrip(pen, { numbers, left, width: own, top, height: ROW, scale }, shades, ground);
    });
  });
}

/**
 * A line between each group of heads and the next.
 *
 * @param {CanvasRenderingContext2D} pen
 * @param {{groups: number, group: number, top: number, tall: number}} row
 * @param {string} color
 */
function drawBorders(pen, { groups, group, top, tall }, color) {
  pen.fillStyle = color;
  for (let i = 1; i < groups; i += 1) pen.fillRect(Math.round(i * (group + BETWEEN_GROUPS) - BETWEEN_GROUPS / 2), top, 1, tall);
}

/** The width that is left for a canvas beside the names of its rows. @param {HTMLCanvasElement} canvas */
function roomOf(canvas) {
  const parent = /** @type {HTMLElement} */ (canvas.parentElement);
  const before = canvas.previousElementSibling;
  const taken = before instanceof HTMLElement && before.offsetWidth ? before.offsetWidth + 6 : 0;
  return Math.floor(parent.clientWidth - taken);
}

/** @type {Map<string, string[]>} */
const tables = new Map();

/**
 * Shades of one colour for weights, in the places where `drawStrip` looks for numbers above zero.
 *
 * @param {string} color
 */
function shadesOf(color) {
  const table = tables.get(color) ?? Array.from({ length: 511 }, (_, i) => withAlpha(color, Math.max(0, i - 255) / 255));
  tables.set(color, table);
  return table;
}
