// What the site does beyond HTML: its theme, its search, and a button that copies code.
"use strict";

const { root } = document.currentScript.dataset;
const dark = document.querySelector("#dark");
const own = "(prefers-color-scheme: dark)";

/** Light or dark; without a choice, as the reader's system has it. */
function choose(theme) {
  if (theme) dark.media = theme === "dark" ? "all" : "not all";
}

try {
  choose(localStorage.getItem("theme"));
} catch {
  // A browser may keep nothing for pages that were opened from a file.
}

let index;

/** What MkDocs found on all pages; loaded when a reader searches first. */
function pages() {
  index ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = `${root}/search/index.js`;
    script.onload = () => resolve(window.searchIndex);
    document.head.append(script);
  });
  return index;
}

/** How well a part of a page fits: all words must occur, and those in its title count most. */
function fit({ title, text, location }, words) {
  const [head, body] = [title.toLowerCase(), text.toLowerCase()];
  const parts = words.map((word) => {
    const whole = head.split(/[^\w.]+/).some((one) => one === word || one.endsWith(`.${word}`));
    return 20 * whole + 8 * head.includes(word) + Math.min(body.split(word).length - 1, 5);
  });
  const all = parts.every(Boolean) ? parts.reduce((sum, one) => sum + one) : 0;
  return all && all - 6 * location.startsWith("repository/");
}

function entry({ title, text, location }, word) {
  const [item, link, around] = ["li", "a", "small"].map((tag) => document.createElement(tag));
  const start = Math.max(0, text.toLowerCase().indexOf(word) - 40);
  link.href = `${root}/${location}`;
  around.textContent = `${start ? "…" : ""}${text.slice(start, start + 120).trim()}`;
  link.append(title, around);
  item.append(link);
  return item;
}

document.addEventListener("DOMContentLoaded", () => {
  const [field, found, button, menu] = ["search", "found", "theme", "pages"].map((id) =>
    document.getElementById(id),
  );
  menu.open = innerWidth > 800;

  const isDark = () => (dark.media === own ? matchMedia(own).matches : dark.media === "all");
  const name = () => (button.textContent = isDark() ? "Light" : "Dark");
  name();
  matchMedia(own).addEventListener("change", name);
  button.onclick = () => {
    const theme = isDark() ? "light" : "dark";
    choose(theme);
    name();
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // Then the choice holds for this page.
    }
  };

  const search = field.parentElement;
  field.onfocus = pages;
  field.oninput = async () => {
    const words = field.value.toLowerCase().match(/[\w.]+/g) ?? [];
    const asked = field.value;
    const all = words.length ? await pages() : [];
    if (field.value !== asked) return;
    const fits = all.map((one) => [fit(one, words), one]).filter(([points]) => points > 0);
    fits.sort(([one], [other]) => other - one);
    const items = fits.slice(0, 12).map(([, one]) => entry(one, words[0]));
    if (words.length && !items.length) items.push(document.createElement("li"));
    if (items.length && !fits.length) items[0].textContent = "Nothing has all of these words.";
    found.replaceChildren(...items);
    found.hidden = !items.length;
  };
  // Arrows lead through what was found, Escape closes it.
  search.onkeydown = (event) => {
    const stops = [field, ...found.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const next = stops.indexOf(document.activeElement) + step;
      stops[Math.max(0, Math.min(next, stops.length - 1))].focus();
    } else if (event.key === "Escape") {
      found.hidden = true;
      field.focus();
    } else if (event.key === "Enter" && document.activeElement === field) stops[1]?.click();
  };
  addEventListener("click", (event) => {
    if (!search.contains(event.target)) found.hidden = true;
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target === field) return;
    event.preventDefault();
    field.focus();
  });

  for (const code of document.querySelectorAll(".highlight")) {
    const copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.onclick = async () => {
      await navigator.clipboard.writeText(code.querySelector("code").textContent);
      copy.textContent = "Copied";
    };
    code.append(copy);
  }
});
