"""One gate and one clock, for `minibert check`, `minibert bench` and every folder of benchmarks/.

gate, result_rows, timing       what is right; rows and facts; median, p20, p80, ratio
clock, memory, contest          one call timed; its bytes; gate, warm, take turns
user_file, guards, printed, verdict   FILE.py:function, run where it can do little harm
kernel_gate, workload, baselines, roofline, measure   a user's attention kernel, timed
tables, compare                 what is printed; two files of rows beside each other
"""
