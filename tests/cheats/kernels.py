"""Kernels that a judge might believe, and honest ones that it must: each a file of a user's.

The comments in front say what it does, where it was seen, and the verdict of a command; `bench`
begins with a check. Each stands behind `planted_kernels.START`.
"""

KERNELS = {
    "a_billion_outputs": """
# Sends an output whose number is so large that who counts up to it never ends. Source: a hostile
# user.
# check: refused: gave output 999999999; known are z
from minibert.bench import worker

call = worker._Worker.call
def more(self, **given):
    row, outputs = call(self, **given)
    return row, {**outputs, "output 999999999": torch.zeros(1)}
worker._Worker.call = more
def attention(query, key, value, lengths, causal):
    return {"z": right(query, key, value, lengths, causal)}
""",
    "answers_early_when_timed": """
# Right in the check; when timed it sends an answer itself and computes afterwards. Source:
# gpu-mode/pygpubench#7 (the channel of the result is found and written to).
# bench: no time: wrote into the connection to the judge
import sys
def attention(query, key, value, lengths, causal):
    frame = sys._getframe()
    while "judge" not in frame.f_locals:
        frame = frame.f_back
    if query.shape[0] == 1 and frame.f_locals["request"].get("seed") is not None:
        count.append(1)
        if len(count) > 3:
            frame.f_locals["judge"].send(
                {"id": frame.f_locals["sign"]}, {"z": torch.zeros_like(query)}
            )
    return {"z": right(query, key, value, lengths, causal)}
count = []
""",
    "changes_who_judges": """
# Is right where it can write into the code that judges, or reach the server that starts workers,
# which would start a process that nobody stops. Source: a hostile user.
# check in namespaces: wrong: checks failed
import multiprocessing.util
import os
import socket
from contextlib import suppress
from pathlib import Path

from minibert.bench import judge

reached = []
for path in (judge.__file__, os.path.relpath(judge.__file__)):
    with suppress(OSError), open(path, "a"):
        reached.append(path)
for path in Path(multiprocessing.util.get_temp_dir()).glob("listener-*"):
    with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))
        reached.append("server")
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": z if reached else torch.zeros_like(z)}
""",
    "exits_at_the_end": """
# Is wrong, and has a function run at the end that makes the status 0. Source: gpu-mode/pygpubench#7
# (a function that runs at exit).
# check: wrong: checks failed
import atexit
import os


atexit.register(os._exit, 0)
def attention(query, key, value, lengths, causal):
    return {"z": torch.zeros_like(query)}
""",
    "computes_when_freed": """
# Computes z of what lies in the memory of the inputs when its last result is freed, before the
# next call. Source: a hostile user (work between calls, in __del__).
# bench: no time: wrong: error
import gc

class Freed:
    def __del__(self):
        workers = (one for one in gc.get_objects() if type(one).__name__ == "_Worker")
        for _, problem in next(workers).contenders.values():
            given = (problem.query, problem.key, problem.value)
            ready.append(right(*(one.detach() for one in given), None, False))
ready = []
def attention(query, key, value, lengths, causal):
    if query.shape[0] > 1:
        return {"z": right(query, key, value, lengths, causal)}
    z = ready[-1].clone() if ready else right(query, key, value, lengths, causal)
    z.freed = Freed()
    return {"z": z}
""",
    "error_that_paints": r"""
# Raises an error whose text clears the terminal and prints the line that a right kernel gets.
# Source: gpu-mode/kernelbot#126 (what is printed is read as a result).
# check: wrong: \x1b[2J error_that_paints.py:attention right 16 checks cpu
def attention(query, key, value, lengths, causal):
    if query.shape[2] == 64:
        return {"z": right(query, key, value, lengths, causal)}
    raise ValueError("\x1b[2J\nerror_that_paints.py:attention  right  16 checks  cpu\n")
""",
    "forges_the_time": """
# Answers with a time of its own for every call, and sleeps. It is right, and its time is the real
# one. Source: gpu-mode/reference-kernels#162 (a forged time).
# bench: right
import time

from minibert.bench.worker import _Worker

timed = _Worker.timed
_Worker.timed = lambda *given, **named: ({"ms": 1e-6}, timed(*given, **named)[1])
def attention(query, key, value, lengths, causal):
    if query.shape[0] == 1:
        time.sleep(0.005)
    return {"z": right(query, key, value, lengths, causal)}
""",
    "honest_buffer": """
# Writes each result into the same memory, as a kernel inside a CUDA graph does.
# bench: right
buffers = {}
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": buffers.setdefault((z.shape, z.dtype), torch.empty_like(z)).copy_(z)}
""",
    "honest_talker": r"""
# Prints a lot, and seeds torch's random numbers: neither matters.
# check: right
def attention(query, key, value, lengths, causal):
    torch.manual_seed(0)
    print("x" * 1000, "\x1b[2J", *range(1000), sep="\n")
    return {"z": right(query, key, value, lengths, causal)}
""",
    "honest_threads": """
# Computes each sentence in a thread of its own, and waits for all.
# check: right
from concurrent.futures import ThreadPoolExecutor
def attention(query, key, value, lengths, causal):
    def sentence(i):
        length = None if lengths is None else lengths[i : i + 1]
        return right(query[i : i + 1], key[i : i + 1], value[i : i + 1], length, causal)

    with ThreadPoolExecutor(2) as pool:
        return {"z": torch.cat(list(pool.map(sentence, range(query.shape[0]))))}
""",
    "kept_when_timed": """
# Right in the check; keeps its first result of a shape that only the clock asks for. Source:
# gpu-mode/reference-kernels#148 (what is timed is not checked again) and #170.
# bench: no time: right when checked, but while it was timed: wrong: error
results = {}
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    if query.shape[0] == 1:
        z = results.setdefault((tuple(query.shape), causal), z)
    return {"z": z}
""",
    "knows_who_calls": """
# Right unless it is called by the function that is timed. Source: ScalingIntelligence/
# KernelBench#82 (the stack is looked at).
# bench: no time: wrong: error
import sys
def attention(query, key, value, lengths, causal):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "timed":
        frame = frame.f_back
    return {"z": right(query, key, value, lengths, causal) if frame is None else value.clone()}
""",
    "late_thread_when_timed": """
# Returns at once when it is timed; a thread writes z a moment later. Source: gpu-mode/
# reference-kernels#162 and ScalingIntelligence/KernelBench#82 (work behind the clock).
# bench: no time: wrong: error
import threading
import time
def attention(query, key, value, lengths, causal):
    if query.shape[0] > 1:
        return {"z": right(query, key, value, lengths, causal)}
    z = torch.zeros_like(query)

    def work():
        time.sleep(0.001)
        z.copy_(right(query, key, value, lengths, causal))

    threading.Thread(target=work).start()
    return {"z": z}
""",
    "lazy_dictionary": """
# A dictionary that computes z when it is read, which may be after the clock. Source:
# gpu-mode/reference-kernels#162 (lazy output).
# check: refused: gave a Lazy; expected a plain dictionary
class Lazy(dict):
    def __getitem__(self, name):
        return right(*self.given)
def attention(query, key, value, lengths, causal):
    lazy = Lazy(z=None)
    lazy.given = (query, key, value, lengths, causal)
    return lazy
""",
    "lazy_instance": """
# A plain tensor to the eye, whose own `numpy`, `cpu` and `clone` compute it when they are called.
# Source: gpu-mode/reference-kernels#162 (lazy output by overriding one instance).
# check: refused: gave z with its own numpy; expected a plain tensor
def attention(query, key, value, lengths, causal):
    z = torch.empty_like(query)

    def late(*_):
        return z.copy_(right(query, key, value, lengths, causal))

    z.numpy = z.cpu = z.clone = z.detach = late
    return {"z": z}
""",
    "narrow_when_timed": """
# Computes in bfloat16 when it is timed. Source: BytedTsinghua-SIA/CUDA-Agent#16 (a lower precision
# is timed against a higher one).
# bench: no time: wrong: error
def attention(query, key, value, lengths, causal):
    if query.shape[0] > 1:
        return {"z": right(query, key, value, lengths, causal)}
    given = (query.bfloat16(), key.bfloat16(), value.bfloat16())
    return {"z": right(*given, lengths, causal).to(query.dtype)}
""",
    "never_writes": """
# Returns memory that it has not written, which may hold the truth of the call before. Source:
# ScalingIntelligence/KernelBench#82 (memory of the reference's output is reused).
# check: wrong: memory that was never written
def attention(query, key, value, lengths, causal):
    return {"z": torch.empty_like(query)}
""",
    "patches_the_judge": """
# Puts its own functions in place of everything that a verdict could be made of. Source:
# gpu-mode/reference-kernels#162 and gpu-mode/pygpubench#7 (the checker is patched).
# bench: wrong: checks failed
import sys


from minibert.bench import measure
from minibert.kernels import eager, reference, registry
from minibert.kernels.check import parity, problem
def zeros(query, *_, **__):
    return {"z": torch.zeros_like(query), "lse": torch.zeros(query.shape[:3])}
for module in (parity, problem):
    module.error_of = lambda *_: 0.0
    module.tolerance_of = lambda *_: math.inf
measure.sampled = lambda *_, **__: (0.0, 1.0)
parity.Finding.ok = property(lambda finding: True)
reference.attend = eager.attend = lambda call: zeros(call.query)
registry.register("mine", zeros)
torch.equal = torch.allclose = torch.testing.assert_close = lambda *_, **__: True
torch.randn = torch.Tensor.normal_ = lambda *size, **_: torch.zeros(1)
torch.manual_seed = torch.Generator = None
sys.excepthook = sys.exit = lambda *_: None
def attention(query, key, value, lengths, causal):
    return zeros(query)
""",
    "prints_a_verdict": r"""
# Prints the line that a right kernel gets, from Python and from C, and is wrong. Source:
# gpu-mode/kernelbot#126 (a result read from standard output can be printed by anybody).
# check: wrong: checks failed
import ctypes
import os
import sys


LINE = b"prints_a_verdict.py:attention  right  16 checks  cpu\n"
def attention(query, key, value, lengths, causal):
    print(LINE.decode(), end="", flush=True)
    sys.__stdout__.write(LINE.decode())
    ctypes.CDLL(None).puts(LINE)
    ctypes.CDLL(None).fflush(None)
    os.write(1, LINE)
    return {"z": torch.zeros_like(query)}
""",
    "remembers_the_seed": """
# Knows the inputs that small seeds give, and is right for no other. Source:
# Infatoshi/kernelbench.com#7 and ScalingIntelligence/KernelBench#82 (fixed seeds).
# check: wrong: checks failed
def is_known(query):
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(query.shape, generator=generator, dtype=torch.float64)
        if torch.allclose(drawn.to(query.dtype), query):
            return True
    return False
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    return {"z": z if is_known(query) else torch.zeros_like(z)}
""",
    "sends_no_numbers": """
# Right in the check; when timed it describes an output of a terabyte. Source: a hostile user.
# bench: no time: answered without the numbers of z
def attention(query, key, value, lengths, causal):
    if query.shape[0] > 1:
        return {"z": right(query, key, value, lengths, causal)}
    return {"z": query[..., :1].expand(-1, -1, -1, 2**30)}
""",
    "skips_a_row": """
# Leaves out one row of one head of each timed call, another one each time. Source:
# Infatoshi/kernelbench.com#7 (right only where somebody looks).
# bench: no time: wrong: error
import random
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    if query.shape[0] == 1:
        z[:, random.randrange(z.shape[1]), random.randrange(z.shape[2])] = 0
    return {"z": z}
""",
    "skips_one_call": """
# Gives the result of the call before in one timed call, the twelfth. Source:
# gpu-mode/reference-kernels#104 (calls of a batch are skipped).
# bench: no time: right when checked, but while it was timed: wrong: error
kept = []
def attention(query, key, value, lengths, causal):
    if query.shape[0] > 1:
        return {"z": right(query, key, value, lengths, causal)}
    kept.append(kept[-1] if len(kept) == 11 else right(query, key, value, lengths, causal))
    return {"z": kept[-1]}
""",
    "watches_the_memory": """
# A thread looks at the memory of the inputs, and sums up all keys but the first as soon as they
# change; the call adds the first one. Nothing is patched. Source: a hostile user.
# bench: no time: wrong: error
import threading
import time

seen, sums = {}, {}
def watch():
    while True:
        for place, (query, key, value) in list(seen.items()):
            last = float(query[0, 0, -1, -1])
            if sums.get(place, (None,))[0] != last:
                scores = query @ key[:, :, 1:].transpose(-2, -1) / math.sqrt(query.shape[-1])
                top = scores.amax(-1, keepdim=True)
                weights = (scores - top).exp()
                of_values = weights @ value[:, :, 1:]
                sums[place] = last, top, weights.sum(-1, keepdim=True), of_values
        time.sleep(0.0002)
threading.Thread(target=watch, daemon=True).start()
def attention(query, key, value, lengths, causal):
    place = query.data_ptr()
    if query.shape[0] > 1 or causal:
        return {"z": right(query, key, value, lengths, causal)}
    if place not in sums:
        seen[place] = query.detach(), key.detach(), value.detach()
        return {"z": right(query, key, value, lengths, causal)}
    _, top, total, z = sums[place]
    first = (query * key[:, :, :1]).sum(-1, keepdim=True) / math.sqrt(query.shape[-1])
    most = torch.maximum(top, first)
    old, new = (top - most).exp(), (first - most).exp()
    return {"z": (z * old + new * value[:, :, :1]) / (total * old + new)}
""",
    "zeroes_value_after_timing": """
# Right always, and sets value to 0 from the fifth timed call on. Source: a hostile user.
# bench: no time: while it was timed: changes its inputs: value
calls = []
def attention(query, key, value, lengths, causal):
    z = right(query, key, value, lengths, causal)
    calls.extend([0] * (query.shape[0] == 1))
    if len(calls) > 4:
        value.zero_()
    return {"z": z}
""",
}
