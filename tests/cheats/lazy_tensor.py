"""A tensor that computes its numbers when somebody looks at them.

Source: gpu-mode/reference-kernels#161 and #162 (a subclass puts its work off).
check: refused: gave z as a Lazy; expected a plain tensor
"""

import torch
from plain_attention import right


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if len(arguments) > 0 and type(arguments[0]) is cls and not arguments[0].done:
            arguments[0].done = True
            arguments[0].copy_(right(*arguments[0].given))
        return super().__torch_function__(function, types, arguments, options or {})


def attention(query, key, value, lengths, causal):
    z = torch.empty_like(query).as_subclass(Lazy)
    z.given, z.done = (query, key, value, lengths, causal), False
    return {"z": z}
