"""Everyone who is measured, in the order of the tables."""

from benchmarks.instruments import (
    hooks_rows,
    lens_rows,
    minibert_rows,
    nnsight_rows,
    pyvene_rows,
)

ENTRIES = [
    *minibert_rows.entries(),
    *hooks_rows.entries(),
    *lens_rows.entries(),
    *nnsight_rows.entries(),
    *pyvene_rows.entries(),
]
