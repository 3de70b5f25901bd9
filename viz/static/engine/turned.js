/** Rotary positions, as layers/rotary.py. */

import { turnedBy } from "../core/data/rotation.js";
import { tensor } from "./tensor.js";

/**
 * The vectors, each turned by where its token stands: the first of them at `first`.
 *
 * @param {import("./tensor.js").Tensor} vectors  (head, position, d_head)
 * @param {import("../core/data/rotation.js").Rotary} rotary
 * @param {number} first
 */
export function turned({ shape, values }, rotary, first) {
  const [heads, positions, width] = shape;
  const side = 2 * rotary.frequencies.length;
  const out = tensor(shape);
  for (let row = 0; row < heads * positions; row += 1) {
    const own = turnedBy(values.subarray(row * width, (row + 1) * width), rotary, 0, first + (row % positions));
    for (let i = 0; i < side; i += 1) own[i] *= rotary.amplitude;
    out.values.set(own, row * width);
  }
  return out;
}
