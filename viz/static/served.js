/** The script of a page before a model behind a server: its engine asks the server. */

import { ServedEngine, engineAddress } from "./engine/served.js";
import { showLive } from "./live/live.js";

showLive(async () => new ServedEngine(engineAddress(location.href)));
