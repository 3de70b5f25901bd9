"""The rungs of docs/lessons/flash: what they read and compute, counted while they run, and times.

rungs.py           the files, and one call of each
counts.py          what is counted, and what counts as far memory
array_counts.py    counting a NumPy rung       tensor_counts.py    counting a torch rung
kernel_counts.py   counting a Triton rung, in Triton's interpreter
picture.py         the picture of a rung       __main__.py         runner, clock, table
"""
