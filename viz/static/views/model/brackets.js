/** Which columns of the model view stand under one bracket: heads that share a key-value head. */

/**
 * Where each bracket begins, and how wide it is; none where each head has its own keys.
 *
 * @param {import("../../core/data/example.js").Example} example
 * @param {{left: number, pitch: number, side: number}} grid
 */
export function brackets(example, { left, pitch, side }) {
  const { heads, keyHeads, header } = example;
  const { n_heads: all, n_kv_heads: shared = all } = header.sizes;
  if (shared === all) return [];
  return keyHeads.map((own) => {
    const columns = heads.flatMap((head, i) => (example.keyHead(head) === own ? [i] : []));
    const [first, last] = [columns[0], columns[columns.length - 1]];
    return { x: left + first * pitch, width: (last - first) * pitch + side };
  });
}
