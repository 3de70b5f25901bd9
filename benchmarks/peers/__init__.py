"""Scripts of examples/ as one writes them with TransformerLens 3.9.

They import nothing of minibert and print the same lines, so that the numbers can be compared by
benchmarks/examples.py. given.py has what they are given, and hooked.py the two embedded models as
TransformerLens', which knows them by no name; neither is counted.
"""
