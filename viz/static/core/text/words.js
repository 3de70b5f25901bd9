/** What stands between the tokens of a running text. */

const CLOSING = /^[.,;:!?%)\]}»”’]+$/u;
const OPENING = /^[([{«“]+$/u;

/**
 * What stands before each token: nothing, a space, a line break, or a place where a line may end.
 *
 * @param {import("../data/data.js").Tokens} tokens
 * @returns {string[]}
 */
export function gapsBefore(tokens) {
  const { text, special, piece } = tokens;
  // Such vocabularies have the space in front of a word as a part of it.
  const spaced = text.some((token, i) => !special[i] && token.startsWith(" "));
  return text.map((token, i) => {
    if (i === 0) return "";
    const before = text[i - 1];
    if (before.endsWith("\n")) return "\n";
    if (special[i] || special[i - 1]) return " ";
    if (spaced && token.startsWith(" ") && token.trim()) return " ";
    if (spaced) return before.trim() ? "" : "\u200b";
    return piece[i] || CLOSING.test(token) || OPENING.test(before) ? "" : " ";
  });
}
