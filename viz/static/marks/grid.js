/**
 * Where the heads of a model stand in a grid: a row a layer and a column a head.
 *
 * @typedef {object} Grid  in CSS pixels
 * @property {number} columns
 * @property {number} rows
 * @property {number} left  room for layer numbers
 * @property {number} top  room for head numbers
 * @property {number} side  of a picture
 * @property {number} pitch  from one picture to the next, across
 * @property {number} drop  and down
 */

/** @param {number} width  CSS pixels there are @param {number} nLayers @param {number} nHeads @returns {Grid} */
export function layOut(width, nLayers, nHeads) {
  const left = 26;
  const pitch = Math.min(Math.floor((width - left) / nHeads), 132);
  const gap = pitch >= 40 ? 5 : pitch >= 24 ? 3 : 2;
  return { columns: nHeads, rows: nLayers, left, top: 28, side: Math.max(3, pitch - gap), pitch, drop: pitch };
}

/** @param {Grid} grid */
export function heightOf({ top, rows, drop }) {
  return top + rows * drop;
}

/** The head at a point, as layer place * heads + head place, or -1. @param {Grid} grid @param {number} x @param {number} y */
export function placeAt({ left, top, pitch, drop, columns, rows }, x, y) {
  const [column, row] = [Math.floor((x - left) / pitch), Math.floor((y - top) / drop)];
  return column < 0 || column >= columns || row < 0 || row >= rows ? -1 : row * columns + column;
}

/** @param {Grid} grid @param {number} place @returns {[number, number]}  left and top of a picture */
export function cornerOf({ left, top, pitch, drop, columns }, place) {
  return [left + (place % columns) * pitch, top + Math.floor(place / columns) * drop];
}
