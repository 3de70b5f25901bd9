/** The script of the worker that runs the model of a live page. */

import { answerPage } from "./engine/messages.js";

answerPage(/** @type {import("./engine/messages.js").Port} */ (/** @type {unknown} */ (self)));
