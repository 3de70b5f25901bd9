"""The kernels on an accelerator: right, how fast, beside whom; `make gpu` runs it.

Order of the files: facts (where rows come from), plan (what is asked, most important first),
journal (the file of rows), inputs and contenders (who computes what), gate, clock, measure (a
group: gate, then clock), parts (what else is asked), parity, worker (a process that does one task
after the other), supervisor (hands them out and outlives the worker), table (the ratios).
"""
