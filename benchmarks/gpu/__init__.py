"""The kernels on an accelerator: right, how fast, beside whom; `make gpu` runs it.

plan, matrix                    what is asked, most important first; every kind of call
contenders, gate, measure       who computes what; is it right; how long, and what it takes
resources                       registers, spills and shared memory of compiled kernels
worker, __main__, journal       a process that does tasks, who outlives it, the file of rows
table                           times and ratios
ahead                           compiles the kernels of a run on the host's other cores
rehearsal, fake_device          the same calls without a GPU, compiled and looked at
"""
