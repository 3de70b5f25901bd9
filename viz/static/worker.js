/**
 * * * * * * * The script of the worker that runs the model of a live page.
 *
 * @import { Port } from "./engine/messages.js"
 */

import { answerPage } from "./engine/messages.js";

answerPage(/** @type {Port} */ (/** @type {unknown} */ (self)));
