/** The script of pages that hold what each layer would predict. */

import { handOver } from "./core/hand_over.js";
import { layersKind } from "./views/layers/layers.js";

handOver({ kinds: [layersKind] });
