"""One gate and one clock, for `minibert check`, `minibert bench` and every folder of benchmarks/.

gate, result_rows                what is right; rows, facts, median, p20, p80 and ratios
clock, contest                   one call timed, its bytes; gate, warm, take turns
user_file, signatures, ways      FILE.py:function, and the conventions it can be called in
learning                         what a convention leaves open, found out by calling
worker, worker_process           where it runs, and the judge's end of that
shared_bytes                     what goes there and comes back
judged_function, judged_run      a user's function as the judge sees it: checked, timed
kernel_gate, workload, baselines, measure   a user's kernel beside others, and the roofline
tables                           what is printed
"""
