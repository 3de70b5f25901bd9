/**
 * BERT's normalizer, character by character, as the library in Rust has it (tokenizers,
 * `normalizers/bert.rs`). That of `@huggingface/tokenizers` 0.2.0 takes halves of characters beyond
 * U+FFFF for Chinese ones, and writes a Greek sigma at the end of a word in another way.
 *
 * @typedef {object} Settings
 * @property {boolean} clean_text
 * @property {boolean} handle_chinese_chars
 * @property {boolean | null} strip_accents  null: as `lowercase`
 * @property {boolean} lowercase
 */

/** Blocks of Chinese characters; the sixth begins where it does in Rust. */
const CHINESE = [
  [0x4e00, 0x9fff], [0x3400, 0x4dbf], [0x20000, 0x2a6df], [0x2a700, 0x2b73f],
  [0x2b740, 0x2b81f], [0x2b920, 0x2ceaf], [0xf900, 0xfaff], [0x2f800, 0x2fa1f],
];

/**
 * @param {string} text
 * @param {Settings} settings
 */
export function bertNormalized(text, { clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  let characters = [...text];
  if (clean_text) characters = characters.filter((one) => !isRemoved(one)).map((one) => (/\s/u.test(one) ? " " : one));
  if (handle_chinese_chars) characters = characters.map((one) => (isChinese(one) ? ` ${one} ` : one));
  if (strip_accents ?? lowercase) characters = [...characters.join("").normalize("NFD").replace(/\p{Mn}/gu, "")];
  // One at a time: of a whole word it depends on what stands around a character.
  return characters.map((one) => (lowercase ? one.toLowerCase() : one)).join("");
}

/** @param {string} character */
function isRemoved(character) {
  if (/[\t\n\r]/.test(character)) return false;
  return /[\0\ufffd\p{Cc}\p{Cf}\p{Co}\p{Cs}]/u.test(character);
}

/** @param {string} character */
function isChinese(character) {
  const point = /** @type {number} */ (character.codePointAt(0));
  return CHINESE.some(([first, last]) => point >= first && point <= last);
}
