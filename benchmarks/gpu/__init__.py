"""The kernels on an accelerator: right, how fast, beside whom; `make gpu` runs it.

Order of the files: facts (where rows come from), cases (every option of a call), plan (what is
asked, most important first), journal (the file of rows), contenders (who computes what), gate,
clock, resources (registers and spills), measure (a group: gate, then clock), parts (what else is
asked), matrix (every option against float64), parity, worker (a process that does one task after
the other), supervisor (hands them out and outlives the worker), table (the ratios).

Without a GPU `rehearsal` compiles and starts the same calls on fake_device, whose fake_driver
computes nothing, with fake_autograd in place of torch's engine; capture_guard refuses what no CUDA
graph can record.
"""
