/** The exercises in their order. */

import { agreement } from "./agreement.js";
import { copying } from "./copying.js";
import { neurons } from "./neurons.js";
import { notUse } from "./not_use.js";
import { oneWeight } from "./one_weight.js";
import { wordOrder } from "./word_order.js";

export const EXERCISES = [oneWeight, wordOrder, agreement, notUse, copying, neurons];
