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

/**
 * @param {number} head  the head's number in the model
 * @param {"light" | "dark"} theme
 */
export function headColor(head, theme) {
  return PALETTES[theme][head % PALETTES[theme].length];
}

/**
 * @param {string} hex  #rrggbb
 * @returns {[number, number, number]}
 */
export function channels(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/**
 * @param {string} hex
 * @param {number} alpha
 */
export function withAlpha(hex, alpha) {
  return `rgba(${channels(hex).join(",")},${alpha.toFixed(4)})`;
}

/**
 * Relative luminance, 0 to 1 (WCAG 2).
 *
 * @param {number[]} color  red, green and blue, 0 to 255
 */
export function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Where black and white have the same contrast with a colour, 4.6: the root of 1.05 * 0.05, less 0.05. */
const EVEN = 0.179;

/**
 * Black or white, whichever has more contrast with the colour.
 *
 * @param {string} hex
 */
export function inkOn(hex) {
  return luminance(channels(hex)) > EVEN ? "#000" : "#fff";
}
