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

/**
 * Whether an element is of a page that is laid out for paper.
 *
 * @param {HTMLElement} root
 */
export function onPaper(root) {
  return root.closest(`.${PRINTING}`) !== null;
}
