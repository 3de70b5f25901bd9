"""The fused kernel in Triton: attention and its statistics in one pass, and its backward.

attention.py   `attend` and `packed_attend`: the implementation "triton"
launch.py      tensors → grids, strides, outputs    tuning.py       which cut of the work is fastest
forward.py     z, lse and the statistics of rows    one_tile.py     short texts, all at once
primitives.py  places, loads and masks              fold.py         the online softmax of a tile
row_outputs.py what a row leaves behind             gradients.py    the autograd function
columns.py     what keys receive, and the map       cells.py        how its cells lie in tiles
memory_copies.py  tiles by Hopper's copy unit (TMA)
backward.py    dq, dk, dv and relevance             backward_*.py   its kernels
*_variants.py  what the static gate compiles        ceilings.py     what the GPU can do at most

Nothing here is imported before a call asks for it: triton is an extra.
"""
