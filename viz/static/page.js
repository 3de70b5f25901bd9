/**
 * The script of every page: the frame, and the views of attention weights.
 *
 * In a file of its own the numbers stand in the file and the state in the file's address; cell.js
 * shows a page in a notebook.
 */

import { handOver } from "./core/hand_over.js";
import { mountCell } from "./cell.js";
import { showPage } from "./live/show_page.js";
import { headKind } from "./views/head/head.js";
import { mapKind } from "./views/map/map.js";
import { modelKind } from "./views/model/model.js";

handOver({ kinds: [headKind, mapKind, modelKind], showPage, mountCell });
