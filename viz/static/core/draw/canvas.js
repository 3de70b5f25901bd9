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
 * The colours and the font that the style gives an element, for what is drawn on a canvas.
 *
 * @typedef {ReturnType<typeof cssColors>} CssColors
 *
 * @param {HTMLElement} root
 */
export function cssColors(root) {
  const style = getComputedStyle(root);
  const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ink: color("--ink"),
    soft: color("--soft"),
    faint: color("--faint"),
    paper: color("--paper"),
    ground: color("--raised"),
    wash: color("--wash"),
    hair: color("--hair"),
    font: style.fontFamily,
  };
}

/**
 * Paper. A canvas is not drawn anew while a browser prints, so the page is laid out for paper before:
 * as wide as A4 and Letter are between their margins, light, and with all that a window scrolls to.
 */

const PRINTING = "printing";

/**
 * Lays a page out for paper before it is printed, and for its window after.
 *
 * @param {HTMLElement} host
 * @param {() => void} update  draws the page
 */
export function listenToPrinter(host, update) {
  for (const [heard, printing] of /** @type {[string, boolean][]} */ ([["beforeprint", true], ["afterprint", false]])) {
    addEventListener(heard, () => {
      host.classList.toggle(PRINTING, printing);
      update();
    });
  }
}

/** Whether an element is of a page that is laid out for paper. @param {HTMLElement} root */
export function onPaper(root) {
  return root.closest(`.${PRINTING}`) !== null;
}
