/** The rules of the pages' code beside its types: text is never markup, and nothing runs from text. */

import js from "@eslint/js";

const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc", "setHTMLUnsafe"];
const LOOK_UPS = ["querySelector", "querySelectorAll", "getElementById", "getElementsByClassName"];

const markup = MARKUP.map((property) => ({
  property,
  message: "Text from outside would become markup: use element() of core/draw/dom.js, or textContent.",
}));
const writing = ["write", "writeln"].map((property) => ({
  object: "document",
  property,
  message: "Text from outside would become markup: use element() of core/draw/dom.js.",
}));
// A page may stand in a shadow DOM, beside others.
const lookUps = LOOK_UPS.map((property) => ({
  object: "document",
  property,
  message: "Keep a reference to the element: a page in a cell is not found from the document.",
}));

export default [
  { ignores: ["**/node_modules/", "viz/built/"] },
  js.configs.recommended,
  {
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "eqeqeq": "error",
      "max-lines": ["error", { max: 1000 }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-properties": ["error", ...markup, ...writing, ...lookUps],
      "no-script-url": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  {
    // The compiler knows every name a browser has.
    files: ["viz/static/**"],
    rules: { "no-undef": "off" },
  },
  {
    // What starts a page has to find its place in the document.
    files: ["viz/static/*.js", "viz/static/live/show_page.js"],
    rules: { "no-restricted-properties": ["error", ...markup, ...writing] },
  },
  {
    files: ["viz/build.js"],
    languageOptions: {
      globals: { console: "readonly", process: "readonly" },
    },
  },
  {
    files: ["tests/live/**"],
    languageOptions: {
      globals: { Buffer: "readonly", process: "readonly", structuredClone: "readonly", URL: "readonly", WebSocket: "readonly" },
    },
  },
  {
    files: ["tests/front_end/**"],
    languageOptions: {
      globals: { btoa: "readonly", Buffer: "readonly", setTimeout: "readonly", TextEncoder: "readonly" },
    },
  },
];
