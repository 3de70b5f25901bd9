/** Which runs stand in the picture: the text, the text with its changes, the other prompt. */

/**
 * @typedef {import("./runs.js").Kept} Kept
 * @typedef {{before: Kept, after: Kept | null, other: Kept | null}} Shown
 */

/**
 * The examples of the runs, each with its name and its place.
 *
 * @param {Shown} shown
 */
export function namedExamples({ before, after, other }) {
  const named = /** @type {[Kept | null, string][]} */ ([
    [before, after ? "Before" : other ? "Text" : ""],
    [after, "After"],
    [other, "Other prompt"],
  ]);
  return named.flatMap(([kept, name]) => (kept ? [{ kept, name }] : [])).map(({ kept: { example }, name }, i) => {
    Object.assign(example, { index: i });
    Object.assign(example.header, { name });
    return example;
  });
}

/**
 * @param {Shown | null} one
 * @param {Shown} other
 */
export function sameRuns(one, other) {
  return one?.before === other.before && one.after === other.after && one.other === other.other;
}

/**
 * The state of the picture that is chosen with other runs: what stands in it, and what was kept where
 * its token is now.
 *
 * @param {import("../core/state/state.js").State} state
 * @param {Shown | null} shown  the runs before
 * @param {Shown} runs
 * @param {(number | null)[]} moved  where each token is now
 */
export function followed(state, shown, runs, moved) {
  const had = { after: Boolean(shown?.after), other: Boolean(shown?.other) };
  const now = (/** @type {number | null} */ at) => (at === null ? null : (moved[at] ?? null));
  return { ...besideOf(state, had, runs), query: now(state.query), key: now(state.key) };
}

/**
 * What stands in the picture after runs came or went: what is new beside the text, and else the same
 * as before.
 *
 * @param {{example: number, beside: number | null}} state
 * @param {{after: boolean, other: boolean}} had
 * @param {Shown} now
 * @returns {{example: number, beside: number | null}}
 */
export function besideOf({ example, beside }, had, { after, other }) {
  const before = ["before", ...(had.after ? ["after"] : []), ...(had.other ? ["other"] : [])];
  const roles = ["before", ...(after ? ["after"] : []), ...(other ? ["other"] : [])];
  const placeOf = (/** @type {number | null} */ place) => (place === null ? -1 : roles.indexOf(before[place]));
  if (after && !had.after) return { example: 0, beside: roles.indexOf("after") };
  if (other && !had.other && !after) return { example: 0, beside: roles.indexOf("other") };
  const first = Math.max(0, placeOf(example));
  const second = placeOf(beside);
  return { example: first, beside: second < 0 || second === first ? null : second };
}
