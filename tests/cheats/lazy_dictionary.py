"""A dictionary that computes z when it is read, which may be after the clock.

Source: gpu-mode/reference-kernels#162 (lazy output).
check: refused: gave a Lazy; expected a plain dictionary
"""

from plain_attention import right


class Lazy(dict):
    def __getitem__(self, name):
        return right(*self.given)


def attention(query, key, value, lengths, causal):
    lazy = Lazy(z=None)
    lazy.given = (query, key, value, lengths, causal)
    return lazy
