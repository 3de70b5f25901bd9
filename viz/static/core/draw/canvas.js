/** Canvases and the pens that draw on them. */

/** @param {HTMLCanvasElement} canvas */
export function penOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/**
 * A canvas of this size, emptied, with a pen in CSS pixels.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function penOn(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [columns, rows] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  const pen = penOf(canvas);
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, columns, rows);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/**
 * The edges of cells, on whole device pixels, so that no seam shows between them.
 *
 * @param {number} left
 * @param {number} width
 * @param {number} count
 */
export function edgesOf(left, width, count) {
  const ratio = devicePixelRatio || 1;
  return Float64Array.from({ length: count + 1 }, (_, i) => Math.round((left + (width * i) / count) * ratio) / ratio);
}
