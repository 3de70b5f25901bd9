/** Put into a live page before its own scripts: does what a reader does and tells how long it took. */
(() => {
  const LATE = 25;
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())));

  /** When what makes a condition true is on screen; the rule of pages/probe.js. */
  async function when(condition) {
    while (!condition()) await frame();
    const dot = document.createElement("div");
    dot.style.cssText = "position:fixed;left:0;bottom:0;width:2px;height:2px;will-change:transform";
    document.body.append(dot);
    dot.style.background = "#777";
    const next = await frame();
    dot.style.background = "#888";
    const second = await frame();
    dot.remove();
    return second - next > LATE ? second : next;
  }

  const busy = () => document.querySelector("#page")?.getAttribute("aria-busy") !== "false";
  const drawn = () => !busy() && document.querySelector(".pictures:not(.arriving) .lower[data-drawn]");
  const cells = () => [...document.querySelectorAll(".live-cell[data-head]")];
  const swept = () => drawn() && cells().length && cells().every((cell) => cell.dataset.value !== undefined);
  const field = () => document.querySelector("textarea");

  function put(text) {
    const box = field();
    box.value = text;
    const begun = performance.now();
    box.dispatchEvent(new InputEvent("input", { bubbles: true }));
    return begun;
  }

  const rest = () => new Promise((resolve) => setTimeout(resolve, 100));

  window.live_probe = {
    /** Types a text when the page is there; returns when all is drawn. */
    async type(text) {
      await when(drawn);
      put(text);
      await when(swept);
      await rest();
    },

    /** Milliseconds from the navigation until a text typed as soon as one can is drawn. */
    async first(text) {
      while (!drawn()) await frame();
      put(text);
      return when(drawn);
    },

    /** Types a key after a text. */
    async key(text, key) {
      const begun = put(`${text}${key}`);
      const picture = (await when(drawn)) - begun;
      const sweep = (await when(swept)) - begun;
      await rest();
      return { picture, sweep };
    },

    /** Clicks on a head. */
    async head(layer, head) {
      const cell = document.querySelector(`.live-cell[data-layer="${layer}"][data-head="${head}"]`);
      const begun = performance.now();
      cell.click();
      const picture = (await when(drawn)) - begun;
      await when(swept);
      await rest();
      return { picture };
    },
  };
})();
