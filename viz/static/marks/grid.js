/**
 * Where the heads of a model stand in a grid: a row a layer and a column a head, or by rank.
 *
 * @typedef {object} Grid  in CSS pixels
 * @property {number[]} places  the heads in reading order: layer place * heads + head place
 * @property {number} columns
 * @property {number} rows
 * @property {number} left  room for layer numbers
 * @property {number} top  room for head numbers
 * @property {number} side  of a picture
 * @property {number} pitch  from one picture to the next, across
 * @property {number} drop  from one picture to the next, down
 * @property {boolean} named  each picture has its name below: it does not stand in its row
 */

/** Room for a name below a picture, CSS pixels. */
const CAPTION = 19;
/** The least width of a picture that has a name. */
const LEAST_NAMED = 58;

/**
 * @param {number} width  CSS pixels there are
 * @param {number} nLayers
 * @param {number} nHeads
 * @param {number[] | null} sorted  the heads by rank; null: a row a layer, a column a head
 * @returns {Grid}
 */
export function layOut(width, nLayers, nHeads, sorted) {
  const named = sorted !== null;
  const left = named ? 0 : 26;
  const most = Math.max(1, Math.floor(width / LEAST_NAMED));
  const columns = named ? Math.min(nHeads < 8 ? 8 : nHeads, most) : nHeads;
  const pitch = Math.min(Math.floor((width - left) / columns), 132);
  const gap = pitch >= 40 ? 5 : pitch >= 24 ? 3 : 2;
  const side = Math.max(3, pitch - gap);
  const places = sorted ?? Array.from({ length: nLayers * nHeads }, (_, i) => i);
  return {
    places,
    columns,
    rows: Math.ceil(places.length / columns),
    left,
    top: named ? 0 : 28,
    side,
    pitch,
    drop: side + (named ? CAPTION : 0) + gap,
    named,
  };
}

/** @param {Grid} grid */
export function heightOf({ top, rows, drop }) {
  return top + rows * drop;
}

/** The place in the grid at a point, or -1. @param {Grid} grid @param {number} x @param {number} y */
export function slotAt({ left, top, pitch, drop, columns, places }, x, y) {
  const column = Math.floor((x - left) / pitch);
  const row = Math.floor((y - top) / drop);
  const slot = row * columns + column;
  return column < 0 || column >= columns || row < 0 || slot >= places.length ? -1 : slot;
}

/** @param {Grid} grid @param {number} slot @returns {[number, number]}  left and top of a picture */
export function cornerOf({ left, top, pitch, drop, columns }, slot) {
  return [left + (slot % columns) * pitch, top + Math.floor(slot / columns) * drop];
}
