/** Where tokens stand in the text they were made of, and a word of it behind a mask. */

/**
 * A text as tokens have it: lower case, without accents, each character with its place.
 *
 * @param {string} text
 */
function folded(text) {
  const places = [];
  let plain = "";
  let at = 0;
  for (const character of text) {
    const bare = character.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
    plain += bare;
    for (let i = 0; i < bare.length; i += 1) places.push(at);
    at += character.length;
  }
  return { plain, places: [...places, at] };
}

/**
 * The characters [start, end) of each token of a text; null for special tokens and what is not found.
 *
 * @param {string} text
 * @param {import("../core/data/data.js").Tokens} tokens
 * @param {number} segment  of a pair: 0 or 1
 * @returns {([number, number] | null)[]}
 */
export function spansOf(text, tokens, segment) {
  const { plain, places } = folded(text);
  let from = 0;
  return tokens.text.map((token, i) => {
    const wanted = folded(token.trim()).plain;
    if (tokens.special[i] || tokens.segment[i] !== segment || !wanted) return null;
    const at = plain.indexOf(wanted, from);
    if (at < 0) return null;
    from = at + wanted.length;
    return [places[at], places[from]];
  });
}

/**
 * The text with the word that a token is part of behind a mask; null where that cannot be.
 *
 * @param {string} text
 * @param {import("../core/data/data.js").Tokens} tokens
 * @param {number} position
 * @param {string} mask
 */
export function masked(text, tokens, position, mask) {
  const spans = spansOf(text, tokens, tokens.segment[position]);
  let [first, last] = [position, position];
  while (first > 0 && tokens.piece[first]) first -= 1;
  while (tokens.piece[last + 1]) last += 1;
  const [begin, end] = [spans[first], spans[last]];
  return begin && end ? `${text.slice(0, begin[0])}${mask}${text.slice(end[1])}` : null;
}

/**
 * What changes of the texts when the word of a token is masked; null where that cannot be.
 *
 * @param {{text: string, second: string | null}} texts
 * @param {import("../core/data/data.js").Tokens} tokens
 * @param {number} position
 * @param {string} mask
 */
export function maskedIn(texts, tokens, position, mask) {
  const name = tokens.segment[position] && texts.second ? "second" : "text";
  const text = masked(texts[name] ?? "", tokens, position, mask);
  return text === null ? null : { [name]: text };
}
