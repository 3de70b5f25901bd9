/**
 * The colours of heads.
 *
 * Twelve colours found by simulated annealing on the smallest OKLab distance between any two,
 * seen with normal vision and with each of the three kinds of colour blindness (Machado et al.
 * 2009, full severity); tests/front_end/colors.test.js measures them. From head 12 on they repeat: the
 * number on the tile stays the identity.
 */
/** @type {Record<string, string[]>} */
export const PALETTES = {
  light: [
    "#226a99", "#ce5509", "#149973", "#8767db", "#885058", "#f58e03",
    "#15b5ff", "#7f025f", "#534802", "#c088ba", "#402f9e", "#99b584",
  ],
  dark: [
    "#51a0f7", "#d39a06", "#10d5aa", "#aa8cb7", "#e26a70", "#bdeeae",
    "#6a6dd0", "#fdc649", "#b35193", "#22fcff", "#847e03", "#b6bafe",
  ],
};

/** @param {number} head  the head's number in the model @param {"light" | "dark"} theme */
export function headColor(head, theme) {
  return PALETTES[theme][head % PALETTES[theme].length];
}

/** @param {string} hex  #rrggbb @returns {[number, number, number]} */
export function channels(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** @param {string} hex @param {number} alpha */
export function withAlpha(hex, alpha) {
  return `rgba(${channels(hex).join(",")},${alpha.toFixed(4)})`;
}

/** A colour on the way from the first of these to the last. @param {string[]} stops  #rrggbb @param {number} part  0 to 1 */
export function mixed(stops, part) {
  const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const [from, to] = [channels(stops[i]), channels(stops[i + 1])];
  return from.map((value, c) => value + (to[c] - value) * (at - i));
}

/** A colour as a pixel of an image. @param {number[]} color  red, green and blue, 0 to 255 */
export function pixelOf([red, green, blue]) {
  return new Uint32Array(Uint8ClampedArray.of(red, green, blue, 255).buffer)[0];
}

/** So many pixels from the first of these colours to the last. @param {string[]} stops  #rrggbb @param {number} count */
export function pixelsOf(stops, count) {
  return Uint32Array.from({ length: count }, (_, i) => pixelOf(mixed(stops, i / (count - 1))));
}

/** Relative luminance, 0 to 1 (WCAG 2). @param {number[]} color  red, green and blue, 0 to 255 */
function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Where black and white have the same contrast with a colour, 4.6: the root of 1.05 * 0.05, less 0.05. */
const EVEN = 0.179;

/** Black or white, whichever has more contrast with the colour. @param {string} hex */
export function inkOn(hex) {
  return luminance(channels(hex)) > EVEN ? "#000" : "#fff";
}

/**
 * Signed numbers as colours: blue above zero, orange below, the stronger the farther from it.
 *
 * @typedef {"light" | "dark"} Theme
 */

/** @type {Record<Theme, {above: string, below: string}>} */
const SIGNS = {
  light: { above: "#17639e", below: "#c9540a" },
  dark: { above: "#58a8ff", below: "#f28a30" },
};
/** The part of all numbers that a scale covers; the few beyond it have the strongest colour. */
const COVERED = 0.995;
/** How many numbers are enough to know it. */
const SAMPLE = 20000;
const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** @param {number} value @param {Theme} theme */
export function signColor(value, theme) {
  return value < 0 ? SIGNS[theme].below : SIGNS[theme].above;
}

/**
 * @param {number} value
 * @param {number} scale  the number that has the strongest colour
 * @param {Theme} theme
 * @param {number} [strongest]  its opacity
 */
export function shadeOf(value, scale, theme, strongest = 1) {
  return withAlpha(signColor(value, theme), Math.min(Math.abs(value) / scale, 1) * strongest);
}

/** The colours from -scale to scale as a CSS image. @param {Theme} theme */
export function rampOf(theme) {
  const { above, below } = SIGNS[theme];
  const middle = `${withAlpha(below, 0)} 50%, ${withAlpha(above, 0)} 50%`;
  return `linear-gradient(90deg, ${below}, ${middle}, ${above})`;
}

/** @type {Map<Theme, string[]>} */
const tables = new Map();

/**
 * All shades of a theme, made once: a canvas is slow where each cell makes its own.
 *
 * @param {Theme} theme
 * @returns {string[]}  from -255 (at 0) over 0 (at 255) to 255 (at 510)
 */
export function shadeTable(theme) {
  const table = tables.get(theme) ?? Array.from({ length: 511 }, (_, i) => shadeOf(i - 255, 255, theme));
  tables.set(theme, table);
  return table;
}

/** @param {number} value @param {number} scale */
export function shadeIndex(value, scale) {
  return 255 + Math.round(255 * Math.max(-1, Math.min(1, value / scale)));
}

/** A round number that nearly all of these are below, in size. @param {ArrayLike<number>[]} arrays */
export function scaleFor(...arrays) {
  const sampled = arrays.flatMap((numbers) => {
    const step = Math.max(1, Math.floor((numbers.length * arrays.length) / SAMPLE));
    return Array.from({ length: Math.floor(numbers.length / step) }, (_, i) => Math.abs(numbers[i * step]));
  });
  // An array of numbers sorts them as numbers, and fast.
  const sizes = Float64Array.from(sampled).sort();
  const size = sizes[Math.floor((sizes.length - 1) * COVERED)] ?? 0;
  if (!(size > 0) || !Number.isFinite(size)) return 1;
  const power = 10 ** Math.floor(Math.log10(size));
  const digit = ROUND.find((step) => step * power >= size * (1 - 1e-9)) ?? 10;
  return digit * power;
}

/**
 * Paper and ink of theme.css, and the least contrast between a word and its shade (WCAG AA).
 *
 * @type {Record<Theme, {paper: string, ink: string}>}
 */
const SHEETS = { light: { paper: "#ffffff", ink: "#1d1d21" }, dark: { paper: "#151619", ink: "#ebebe8" } };
const CONTRAST = 4.5;
const MOST = 0.7;

/** @type {Map<string, number>} */
const KNOWN = new Map();

/**
 * The opacity of the strongest shade of a colour.
 *
 * @param {string} color  #rrggbb
 * @param {Theme} theme
 */
export function strongest(color, theme) {
  const name = color + theme;
  let alpha = KNOWN.get(name) ?? MOST;
  while (contrast(color, alpha, theme) < CONTRAST) alpha -= 0.02;
  KNOWN.set(name, alpha);
  return alpha;
}

/** @param {string} color @param {number} alpha @param {Theme} theme */
function contrast(color, alpha, theme) {
  const [paper, ink] = [SHEETS[theme].paper, SHEETS[theme].ink].map(channels);
  const mixed = channels(color).map((value, i) => value * alpha + paper[i] * (1 - alpha));
  const [bright, dim] = [luminance(ink), luminance(mixed)].sort((a, b) => b - a);
  return (bright + 0.05) / (dim + 0.05);
}

/**
 * The colour behind a token that is looked at with this weight.
 *
 * @param {string} color
 * @param {number} weight
 * @param {Theme} theme
 */
export function weightShade(color, weight, theme) {
  return withAlpha(color, (1 - (1 - Math.min(weight, 1)) ** 3) * strongest(color, theme));
}

/**
 * The colour behind a word or a number that has this value: as strong above zero as below it.
 *
 * @param {number} value
 * @param {number} scale  the number that has the strongest colour
 * @param {Theme} theme
 */
export function signedShade(value, scale, theme) {
  const most = Math.min(strongest(signColor(1, theme), theme), strongest(signColor(-1, theme), theme));
  return shadeOf(value, scale, theme, most);
}
