/**
 * A picture to take away: painted with a pen, so that the same strokes become PNG or SVG, with
 * its numbers as a table.
 *
 * @typedef {object} Pen  coordinates in CSS pixels, y downwards; colours as #rrggbb
 * @property {(x: number, y: number, width: number, height: number, color: string, alpha?: number) => void} rect
 * @property {(x0: number, y0: number, x1: number, y1: number, color: string, width: number, alpha?: number) => void} line
 * @property {(x0: number, y0: number, x1: number, y1: number, color: string, width: number, alpha?: number) => void} curve
 *   bends as the lines of the head view do
 * @property {(x: number, y: number, text: string, style: TextStyle) => void} text
 * @property {(x: number, y: number, width: number, height: number, image: HTMLCanvasElement) => void} image
 *   cells stay sharp when enlarged
 *
 * @typedef {{size: number, color: string, anchor?: "start" | "middle" | "end", bold?: boolean, angle?: number}} TextStyle
 *
 * @typedef {object} Figure
 * @property {string} name  of the file, without an ending
 * @property {number} width
 * @property {number} height
 * @property {string} paper  the background's colour
 * @property {(pen: Pen) => void} paint
 * @property {string[]} columns  of the table
 * @property {() => Iterable<(string | number)[]>} rows
 */

export {};
