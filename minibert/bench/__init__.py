"""One gate and one clock, for `minibert check`, `minibert bench` and every folder of benchmarks/.

A user's function, from left to right: `user_file` loads it and `signatures` binds it, in a process
of its own (`worker`; `worker_process` is the judge's end). `judge` finds out how it is
called and has every case checked. `measure` times it beside the `baselines`, with fresh inputs that
are checked too.

result_rows   what is right; rows, facts, median, p20, p80 and ratios
contest       the clock for trusted code: gate, warm, take turns
"""
