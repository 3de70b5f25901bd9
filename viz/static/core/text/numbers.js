/** Numbers as a person writes them: a true minus, powers of ten, as many digits as matter. */

const DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** @param {number} value @param {number} [digits]  after the point */
export function written(value, digits = 3) {
  if (value === 0) return "0";
  if (value === -Infinity) return "−∞";
  const size = Math.abs(value);
  const text = size < 0.5 * 10 ** -digits ? small(size) : size.toFixed(digits);
  return value < 0 ? `−${text}` : text;
}

/** @param {number} size */
function small(size) {
  const [digit, power] = size.toExponential(1).split("e-");
  const raised = Array.from(power, (character) => DIGITS[Number(character)]).join("");
  return `${digit}\u202f×\u202f10⁻${raised}`;
}

/** A number behind a sign, as it stands in a sum. @param {number} value @param {number} [digits] */
export function signed(value, digits = 3) {
  return value <= 0 ? written(value, digits) : `+${written(value, digits)}`;
}

/** A round number without idle zeros, for scales. @param {number} value */
export function short(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

/** A weight in percent: three digits where there are any to see. @param {number} weight */
export function share(weight) {
  const value = weight * 100;
  if (value === 0) return "0\u202f%";
  if (value >= 0.05) return `${value.toFixed(value < 9.995 ? 2 : 1)}\u202f%`;
  return `${written(value, 3)}\u202f%`;
}

/** @param {number} number @param {string} one  "1 layer" @param {string} many  " layers" */
export function counted(number, one, many) {
  return number === 1 ? one : `${number}${many}`;
}
