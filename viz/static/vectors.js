/** The script of pages that hold query and key: the views that are made of them. */

import { handOver } from "./core/hand_over.js";
import { arithmeticKind } from "./views/arithmetic/arithmetic.js";
import { neuronKind } from "./views/neuron/neuron.js";

handOver({ kinds: [arithmeticKind, neuronKind] });
