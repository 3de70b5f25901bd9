/** How far a head looks: its attention by the distance between query and key. */

import { placeOn, roundTop, ticks } from "../../core/draw/scale.js";
import { signColor } from "../../core/draw/sign_colors.js";
import { percent } from "../../core/text/text.js";
import { drawAxes } from "../../marks/axes.js";

/** CSS pixels. */
const HEIGHT = 190;
const [LEFT, RIGHT, ABOVE, BELOW] = [48, 10, 30, 44];
/** The offsets whose share a sentence names. */
const NAMED = 3;

/**
 * @param {import("./data.js").Survey} survey
 * @returns {import("./section.js").Part | null}
 */
export function profilePart(survey) {
  const { profile } = survey.header;
  if (!profile) return null;
  return {
    id: "distance-profile",
    heading: "How far the chosen head looks",
    onlyPointed: true,
    draw: (look) => profileDrawing(survey, profile, look),
  };
}

/**
 * @param {import("./data.js").Survey} survey
 * @param {{reach: number, mass: number[][]}} profile
 * @param {import("./section.js").Look} look
 * @returns {import("./section.js").Drawing}
 */
function profileDrawing(survey, { reach, mass }, { width, theme, colors, state: { place } }) {
  const numbers = mass[place];
  const top = roundTop(Math.max(...numbers));
  const x = { low: -reach - 0.5, high: reach + 0.5, from: LEFT, to: width - RIGHT };
  const y = { low: 0, high: top, from: ABOVE + HEIGHT, to: ABOVE };
  const wide = Math.max(1, ((x.to - x.from) / numbers.length) * 0.8);
  const color = signColor(1, theme);
  return {
    figure: {
      name: `distance-profile-${survey.nameOf(place)}`,
      width,
      height: ABOVE + HEIGHT + BELOW,
      paper: colors.paper,
      paint(pen) {
        const panel = { title: `head ${survey.nameOf(place)}`, x, y };
        const across = ticks(-reach, reach, Math.max(2, width / 90));
        const name = "offset: behind the token before 0, ahead of it after 0";
        drawAxes(pen, panel, colors, { x: across, y: ticks(0, top, 4), xText: signed, yText: share, name });
        numbers.forEach((value, i) => {
          const [middle, at] = [placeOn(x, i - reach), placeOn(y, value)];
          pen.rect(middle - wide / 2, at, wide, y.from - at, color);
        });
      },
      columns: ["layer", "head", "offset", "mass"],
      *rows() {
        for (const [head, all] of mass.entries()) {
          for (const [i, value] of all.entries()) {
            yield [Math.floor(head / survey.nHeads), head % survey.nHeads, i - reach, value];
          }
        }
      },
    },
    points: numbers.map((value, i) => ({ x: placeOn(x, i - reach), y: placeOn(y, value), place, panel: i })),
    said: ({ panel }) => `offset ${signed(panel - reach)}: ${percent(numbers[panel])}`,
    sentence: profileSaid(survey.nameOf(place), numbers, reach),
  };
}

/** @param {number} value */
function share(value) {
  return `${Number((value * 100).toPrecision(3))}\u202f%`;
}

/** @param {number} offset */
function signed(offset) {
  return offset > 0 ? `+${offset}` : String(offset).replace("-", "−");
}

/**
 * @param {string} head
 * @param {number[]} numbers
 * @param {number} reach
 */
function profileSaid(head, numbers, reach) {
  const order = numbers.map((_, i) => i).sort((a, b) => numbers[b] - numbers[a] || Math.abs(a - reach) - Math.abs(b - reach));
  const most = order.slice(0, NAMED).map((i) => `${percent(numbers[i])} at offset ${signed(i - reach)}`);
  const back = numbers.slice(0, reach).reduce((sum, value) => sum + value, 0);
  const ahead = numbers.slice(reach + 1).reduce((sum, value) => sum + value, 0);
  return `Head ${head} has most of its attention near these places: ${most.join(", ")}; up to ${reach} tokens back it gives ${percent(back)}, up to ${reach} ahead ${percent(ahead)}.`;
}
