/** The script of every page: the frame, and the views of attention weights. */

import { handOver } from "./core/hand_over.js";
import { showPage } from "./live/show_page.js";
import { headKind } from "./views/head/head.js";
import { mapKind } from "./views/map/map.js";
import { modelKind } from "./views/model/model.js";

handOver({ kinds: [headKind, mapKind, modelKind], showPage });
