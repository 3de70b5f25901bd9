"""Reading and editing live transformers models, without importing transformers.

hf_model ──attach──▶ Attached ──trace──▶ AttachedTrace: stacks ──▶ layers ──▶ quantities

listen.py     stands between the model and the function that it attends with
call.py       one attention call: what was given, what follows from it, and whether that holds
layout.py     stacks of layers, their names, and what the checks found
projection.py the output projection of each attention module
block.py      the block around it: streams, and what is added to them
unembedding.py  the final norm and the head
recording.py  the calls of each forward pass, and edits of them
read.py       the trace: stacks, layers, heads, statistics, and the same as pages read it
attach.py     `attach`
measuring.py  `measuring`: statistics while the model runs or generates, without N x N
"""
