/**
 * The script of the worker that runs the model of a live page.
 *
 * @import { Port } from "./engine/local.js"
 */

import { answerPage } from "./engine/local.js";

answerPage(/** @type {Port} */ (/** @type {unknown} */ (self)));
