/** A number in a sentence. */

import { element } from "../core/draw/dom.js";
import { written } from "../core/text/numbers.js";

/**
 * A number that is shown, with all its digits for whoever asks.
 *
 * @param {string} name
 * @param {number} value
 * @param {string} [text]
 */
export function numeral(name, value, text = written(value)) {
  const made = element("data", { value: String(value) }, [text]);
  made.dataset.name = name;
  return made;
}
