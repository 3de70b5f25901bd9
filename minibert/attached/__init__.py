"""Reading and editing the attention of live transformers models, without importing transformers.

hf_model ──attach──▶ Attached ──trace──▶ AttachedTrace: stacks ──▶ layers ──▶ query … z, statistics

listen.py     stands between the model and the function that it attends with
call.py       one attention call: what was given, and what follows from it
check.py      whether probs · value gives z, and which modules attended elsewhere
stacks.py     the names of a model's stacks of layers
edits.py      edits by the names of minibert.trace.edit
recording.py  the calls of each forward pass
stack.py      one stack of layers, a layer, a head
read.py       the trace
page_trace.py the same as pages read it
attach.py     `attach`
"""
