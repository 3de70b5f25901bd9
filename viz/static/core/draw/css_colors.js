/**
 * The colours and the font that the style gives an element, for what is drawn on a canvas.
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
