"""Is a kernel of yours right, and how fast is it: `minibert check` and `minibert bench`.

Place: above kernels/, whose `parity.check` is the gate; below the command line, cli_bench.py. The
order of the data: verdict (a process of its own), user_file (FILE.py:function), gate, then
workload, baselines, ceilings, clock, measure, rows, and at the end tables and comparing two files
of rows.
"""
