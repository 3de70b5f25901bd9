"""One gate and one clock, for `minibert check`, `minibert bench` and every folder of benchmarks/.

gate, result_rows, timing       what is right; rows and facts; median, p20, p80, ratio
clock, memory, contest          one call timed; its bytes; gate, warm, take turns
user_file, signatures, calling  FILE.py:function, and the conventions it can be called in
worker, messages, printed       where it runs, and what goes there and comes back
kernel_gate, sampled_rows, workload, baselines, roofline, measure   a user's kernel, timed
read_file                       what can be said of a kernel where there is no GPU
lists, tables, compare          what is printed; two files of rows beside each other
"""
