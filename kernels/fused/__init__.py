"""The fused kernel in Triton: attention and its statistics in one pass, and its backward.

attention.py   `attend`: the implementation "triton"
launch.py      tensors → grids, strides, sizes      tuning.py       which tile sizes are fastest
masks.py       which keys a query sees, scores      outputs.py      what is written
forward.py     z, lse and the statistics of rows    one_tile.py     short texts, all at once
primitives.py  offsets and loads                    fold.py         the online softmax of a tile
row_outputs.py what is written for each row         gradients.py    the autograd function
columns.py     what keys receive, and the map       cells.py        how its cells fill tiles
memory_copies.py  tiles by Hopper's copy unit (TMA)
backward.py    dq, dk, dv and relevance             backward_*.py   its kernels
*_variants.py  what the static gate compiles        ceilings.py     what the GPU can do at most

Nothing here is imported until a call needs it, because triton is an optional dependency.
"""
