"""The fused kernel in Triton: attention and its statistics in one pass, and its backward.

attention.py   `attend`: the implementation "triton", and its autograd function
launch.py      a call → grids, strides, sizes, outputs    tuning.py   which tiles
primitives.py  offsets and loads    masks.py  which keys a query sees, scores
fold.py        the online softmax of a tile
forward.py     z, lse and the statistics of rows
columns.py     what keys receive, and the map
backward.py    dq, dk, dv    backward_kernels.py   its kernels
ceilings.py    what the GPU can do at most

Nothing here is imported until a call needs it, because triton is an optional dependency.
"""
