"""Everyone who is measured, in the order of the tables."""

from benchmarks.instruments import (
    by_hooks,
    by_lens,
    by_minibert,
    by_nnsight,
    by_pyvene,
)

ENTRIES = [
    *by_minibert.entries(),
    *by_hooks.entries(),
    *by_lens.entries(),
    *by_nnsight.entries(),
    *by_pyvene.entries(),
]
