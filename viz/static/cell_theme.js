/** Whether a notebook is light or dark: it has a theme of its own, whatever the system's is. */

/** Brightness (0 to 1) below which a background is dark. */
const DARK = 0.45;

/** Stands in for the answer of matchMedia("(prefers-color-scheme: dark)"). */
export class NotebookDarkness extends EventTarget {
  /** @param {HTMLElement} host */
  constructor(host) {
    super();
    this.host = host;
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.last = this.matches;
    const look = () => this.look();
    this.system.addEventListener("change", look);
    const seen = new MutationObserver(() => {
      look();
      // A theme's colours may fade in after its name is there.
      setTimeout(look, 400);
    });
    for (const one of [document.documentElement, document.body]) seen.observe(one, { attributes: true });
  }

  get matches() {
    return named(document.body) ?? painted(this.host) ?? this.system.matches;
  }

  look() {
    const now = this.matches;
    if (now === this.last) return;
    this.last = now;
    this.dispatchEvent(new Event("change"));
  }
}

/**
 * What the notebook says: JupyterLab and Notebook 7, VS Code, Colab.
 *
 * @param {HTMLElement} body
 * @returns {boolean | undefined}
 */
function named(body) {
  const { jpThemeLight, vscodeThemeKind } = body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  if (vscodeThemeKind) return !vscodeThemeKind.includes("light");
  const theme = document.documentElement.getAttribute("theme");
  return theme === "dark" || theme === "light" ? theme === "dark" : undefined;
}

/**
 * Whether what lies under an element is dark; undefined where nothing is painted.
 *
 * @param {HTMLElement} host
 * @returns {boolean | undefined}
 */
function painted(host) {
  for (let at = /** @type {HTMLElement | null} */ (host); at; at = at.parentElement) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (blue !== undefined && alpha > 0.5) return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255 < DARK;
  }
  return undefined;
}
