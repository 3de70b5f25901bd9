/**
 * Put into every page before its own scripts: tells when what was waited for is on screen.
 *
 * A frame that holds the picture is noticed at its start; two more follow, each with a change of
 * two pixels. Chromium takes the next frame of a page only when the one before is rastered. So
 * the picture is on screen at the start of the frame after it, or, where the second frame after
 * it came late, at the start of that one.
 */
(() => {
  const LATE = 25;
  const DOT = "position:fixed;left:0;bottom:0;width:2px;height:2px;will-change:transform";

  const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())));

  const there = (selectors) => selectors.every((selector) => document.querySelector(selector));

  async function shown(selectors) {
    let begun = await frame();
    while (!document.body || !there(selectors)) begun = await frame();
    const dot = document.createElement("div");
    dot.style.cssText = DOT;
    document.body.append(dot);
    dot.style.background = "#777";
    const next = await frame();
    dot.style.background = "#888";
    const second = await frame();
    dot.remove();
    return { begun, at: second - next > LATE ? second : next };
  }

  const tell = (name, found) => console.debug(`measured ${JSON.stringify({ name, ...found })}`);

  window.measurement = {
    /** Tells when the picture is on screen, in milliseconds since the navigation began. */
    painted: (selectors) => shown(selectors).then(({ at }) => tell("painted", { ms: at })),

    /** Tells how long after the next event of a type its effect is on screen. */
    arm(name, type, selectors) {
      const heard = (event) => {
        removeEventListener(type, heard, true);
        shown(selectors).then(({ at }) => tell(name, { ms: at - event.timeStamp }));
      };
      addEventListener(type, heard, true);
    },

    /** Chooses the last layer, as its menu does. */
    lastLayer(menu, drawn, selectors) {
      const select = document.querySelector(menu);
      if (!select) return false;
      for (const root of document.querySelectorAll(drawn)) delete root.dataset.drawn;
      select.value = select.options[select.options.length - 1].value;
      window.measurement.arm("layer", "change", selectors);
      select.dispatchEvent(new Event("change", { bubbles: true }));
      return true;
    },
  };
})();
