/**
 * Where BERT's pre-tokenizer splits: at spaces, and around each mark of punctuation. What counts as
 * one is what the library in Rust has in its tables (tokenizers, `pre_tokenizers/bert.rs`, by the
 * crate unicode_categories), which are older than those of a browser.
 */

/** Punctuation of Unicode 9 and later, which is no punctuation there. */
const NEWER =
  String.raw`\u{61d}\u{9fd}\u{a76}\u{c77}\u{c84}\u{1b4e}-\u{1b4f}\u{1b7d}-\u{1b7f}\u{2e43}-\u{2e4f}` +
  String.raw`\u{2e52}-\u{2e5d}\u{10d6e}\u{10ead}\u{10ed0}\u{10f55}-\u{10f59}\u{10f86}-\u{10f89}` +
  String.raw`\u{113d4}-\u{113d5}\u{113d7}-\u{113d8}\u{1144b}-\u{1144f}\u{1145a}-\u{1145b}\u{1145d}` +
  String.raw`\u{11660}-\u{1166c}\u{116b9}\u{1183b}\u{11944}-\u{11946}\u{119e2}\u{11a3f}-\u{11a46}` +
  String.raw`\u{11a9a}-\u{11a9c}\u{11a9e}-\u{11aa2}\u{11b00}-\u{11b09}\u{11be1}\u{11c41}-\u{11c45}` +
  String.raw`\u{11c70}-\u{11c71}\u{11ef7}-\u{11ef8}\u{11f43}-\u{11f4f}\u{11fff}\u{12ff1}-\u{12ff2}` +
  String.raw`\u{16d6d}-\u{16d6f}\u{16e97}-\u{16e9a}\u{16fe2}\u{1e5ff}\u{1e95e}-\u{1e95f}`;
/** ASCII symbols count too, and two marks that later became others. */
const PUNCTUATION = String.raw`\p{P}\u0021-\u002F\u003A-\u0040\u005B-\u0060\u007B-\u007E\u166D\u{111C9}`;

/** The parts of a text: words, and marks one by one. */
// Each of them is a character of its own here.
// eslint-disable-next-line no-misleading-character-class
export const BERT_PARTS = new RegExp(String.raw`(?:[^\s${PUNCTUATION}]|[${NEWER}])+|[${PUNCTUATION}]`, "gu");
