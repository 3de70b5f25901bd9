/** The tokens of the text in a row: one is chosen, and a word masked or a token hidden. */

import { button } from "../core/draw/controls.js";
import { element, tokenChip } from "../core/draw/dom.js";
import { tokenName } from "../core/text/text.js";

/**
 * @typedef {object} Acts
 * @property {(position: number) => void} choose
 * @property {(position: number) => void} mask
 * @property {(position: number) => void} hide
 */

/**
 * @param {string | null} maskName  null: the model has no mask
 * @param {Acts} acts
 */
export function createTokens(maskName, acts) {
  const row = element("div", { class: "live-tokens", role: "listbox", "aria-label": "Tokens", "aria-orientation": "horizontal" });
  let chosen = -1;
  const mask = button("Mask this word", () => acts.mask(chosen), { class: "live-act" });
  const hide = button("Hide this token", () => acts.hide(chosen), { class: "live-act" });
  const said = element("span", { class: "live-hint" });
  const root = element("div", { class: "live-words" }, [row, element("div", { class: "live-acts" }, [...(maskName ? [mask] : []), hide, said])]);
  row.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const options = /** @type {HTMLElement[]} */ ([...row.children]);
    const to = options[options.findIndex((one) => one === event.target) + (by ?? 0)];
    if (!by) return;
    // Elsewhere these keys mean layers.
    event.preventDefault();
    event.stopPropagation();
    to?.focus();
  });
  let built = "";
  return {
    root,
    /**
     * @param {import("../core/data/data.js").Tokens} tokens
     * @param {number | null} query  the token that is kept in the picture
     * @param {number[]} hidden
     */
    update(tokens, query, hidden) {
      const wanted = JSON.stringify([tokens.text, tokens.segment]);
      if (wanted !== built) {
        const at = [...row.children].findIndex((one) => one === row.ownerDocument.activeElement);
        row.replaceChildren(...tokens.text.map((_, i) => chipOf(tokens, i, acts.choose)));
        built = wanted;
        if (at >= 0) /** @type {HTMLElement | undefined} */ (row.children[Math.min(at, row.children.length - 1)])?.focus();
      }
      chosen = query ?? -1;
      [...row.children].forEach((one, i) => {
        one.setAttribute("aria-selected", String(i === query));
        one.setAttribute("tabindex", i === (query ?? 0) ? "0" : "-1");
        one.classList.toggle("hidden-token", hidden.includes(i));
      });
      const none = query === null;
      hide.disabled = none;
      mask.disabled = none || Boolean(tokens.special[chosen]) || tokens.text[chosen] === maskName;
      hide.textContent = !none && hidden.includes(chosen) ? "Show this token again" : "Hide this token";
      said.textContent = none ? "Choose a token to mask or hide it." : `Chosen: “${tokenName(tokens, chosen)}”`;
    },
  };
}

/**
 * @param {import("../core/data/data.js").Tokens} tokens
 * @param {number} i
 * @param {(position: number) => void} choose
 */
function chipOf(tokens, i, choose) {
  const special = tokens.special[i] ? " special" : "";
  const made = element("button", { type: "button", class: `live-token${special}`, role: "option" }, [tokenChip(tokens, i, 24)]);
  made.addEventListener("click", () => choose(i));
  return made;
}
