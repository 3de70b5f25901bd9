/** A page with one view: reads the data, builds the frame, keeps address and state the same. */

import { createSource, readHeader } from "./data.js";
import { element } from "./dom.js";
import { HeadView } from "./head.js";
import { strengthFor, usualMinimum } from "./attention.js";
import { listenToKeys } from "./keyboard.js";
import { createLegend } from "./legend.js";
import { createStore, fromHash, keptToken, toHash } from "./state.js";
import { running } from "./text.js";
import { createToolbar } from "./toolbar.js";

const header = readHeader();
const source = createSource(header);
const limits = {
  layers: source.numbers,
  heads: header.heads,
  size: header.tokens.text.length,
  minimum: usualMinimum(header.tokens.text.length),
  pair: header.tokens.segment.includes(1) && header.tokens.segment.includes(0),
};
const store = createStore(fromHash(location.hash, limits));
const darkness = matchMedia("(prefers-color-scheme: dark)");

/** @returns {"light" | "dark"} */
function theme() {
  const chosen = store.get().theme;
  if (chosen !== "auto") return chosen;
  return darkness.matches ? "dark" : "light";
}

function sizes() {
  const { n_layers: nLayers, n_heads: nHeads } = header.sizes;
  const tokens = `${header.cut ? "the text is cut after " : ""}${count(limits.size, "token")}`;
  const parts = [`${count(nLayers, "layer")} of ${count(nHeads, "head")}`, tokens];
  if (header.model) parts.unshift(running(header.model));
  return parts.join(" · ");
}

/**
 * @param {number} number
 * @param {string} thing
 */
function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

function texts() {
  const badges = header.texts.length > 1 ? ["A", "B"] : [""];
  return header.texts.map((text, i) => {
    const line = element("p", { class: "text" }, [element("bdi", {}, [running(text)])]);
    if (badges[i]) line.prepend(element("span", { class: "badge" }, [badges[i]]));
    return line;
  });
}

function heading() {
  const title = header.title ?? (header.texts.map(running).join(" / ") || "Attention");
  document.title = running(`${title} · attention${header.model ? ` in ${header.model}` : ""}`);
  const name = element("h1", {}, [header.title ? running(header.title) : "Where each token looks"]);
  const long = header.texts.join("").length > 240 ? " long" : "";
  return element("header", { class: `heading${long}` }, [
    name,
    element("div", { class: "texts" }, texts()),
    element("p", { class: "sizes" }, [sizes()]),
  ]);
}

function themeButton() {
  const button = element("button", { type: "button", class: "theme" });
  button.addEventListener("click", () => store.set({ theme: theme() === "dark" ? "light" : "dark" }));
  return button;
}

/** @param {string} hash */
function writeAddress(hash) {
  if (hash === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  } catch {
    // Safari allows a hundred changes in half a minute; a later change writes the address.
  }
}

function build() {
  const view = new HeadView(header, source, store);
  const toolbar = createToolbar(store, limits, header.tokens.special.includes(1));
  const legend = createLegend(source.causal);
  const switcher = themeButton();
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  const side = element("aside", { class: "side" }, [view.card, legend.root]);
  page.append(switcher, heading(), toolbar.root, element("div", { class: "body" }, [view.root, side]));
  listenToKeys(store, limits, view.columns);

  const update = () => {
    const state = store.get();
    document.documentElement.dataset.theme = theme();
    const other = theme() === "dark" ? "light" : "dark";
    switcher.textContent = other === "dark" ? "Dark" : "Light";
    switcher.setAttribute("aria-label", `Switch to ${other} colours`);
    toolbar.update(theme());
    legend.setStrength(strengthFor(state.heads.length, keptToken(state) !== null));
    view.update(theme()).catch(fail);
    writeAddress(toHash(state, limits));
  };
  store.subscribe(update);
  darkness.addEventListener("change", update);
  addEventListener("hashchange", () => store.set(fromHash(location.hash, limits)));
  update();
  const kept = keptToken(store.get());
  if (kept) view.columns.items[kept.side][kept.index].scrollIntoView({ block: "nearest" });
}

/** @param {Error} error */
function fail(error) {
  const text = `This page cannot show its numbers: ${error.message}. It needs a browser of 2023 or later.`;
  document.getElementById("page")?.prepend(element("p", { class: "notice" }, [text]));
}

build();
