"""The kernels on an accelerator: right, how fast, beside whom; `make gpu` runs it.

plan                      what is asked, the most important first
measure                   is it right; how long, and what it takes of the device
worker, __main__, rows    the process that measures, who outlives it, the file of rows
rehearsal, fake_device    the same calls without a GPU, compiled and looked at
"""
