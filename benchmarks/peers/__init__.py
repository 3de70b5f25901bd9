"""Scripts of examples/ as one writes them with TransformerLens 3.9 and with nnsight.

They import nothing of minibert and print the same lines, so that the numbers can be compared by
benchmarks/examples.py. given.py has what all are given, and hooked.py the two embedded models as
TransformerLens', which knows them by no name; neither is counted.
"""
