"""Class "checked": files of functions given to `minibert check`, none of which is right.

Some end, silence or deceive the process that they run in. Only the public command is attacked: it
may answer whatever it likes, in good form and in time, but not that the function is right.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random

from tests.siege.judge import DiffersError

# What is done before the answer; most of it is meant for the judge and not for the call.
TRICKS = [
    "pass", "print('right ' * 999)", "sys.stderr.write(chr(27) + '[31m' * 999)", "os._exit(0)",
    "raise SystemExit(0)", "raise KeyboardInterrupt", "raise MemoryError", "os.close(1)",
    "os.close(2)", "os.closerange(3, 99)", "sys.exit = print", "torch.equal = lambda *_: True",
    "torch.allclose = lambda *_, **__: True", "torch.Tensor.__eq__ = lambda *_: True",
    "sys.setrecursionlimit(9)", "warnings.simplefilter('error')",
    "torch.set_default_dtype(torch.half)", "torch.set_num_threads(9)",
    "query.zero_(), key.zero_(), value.zero_()", "os.chdir('/')",
    "threading.Thread(target=time.sleep, args=(99,)).start()", "sys.modules.clear()",
    "os.abort()", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "os.environ.clear()",
    "gc.disable()", "time.perf_counter = lambda: 0.0", "globals().clear()",
    "raise type('R', (Exception,), {'__str__': 5})",
]  # fmt: skip
# Half of an answer, another's, or none; {z} is the right one.
ANSWERS = [
    "None", "{{}}", "[]", "5", "{{'z': 5}}", "{{'z': None}}", "{{'z': {z} * 1.01}}",
    "{{'z': {z}.half()}}", "{{'z': {z}[:, :1]}}", "{{'z': {z}.to(torch.complex64)}}",
    "{{'z': {z}.to('meta')}}", "{z}.sum()", "{{'z': {z}.to_sparse()}}",
    "{{'z': torch.full_like({z}, float('nan'))}}", "{{5: {z}}}", "{{'z': query}}",
    "{{'z': {z}.flip(-1)}}", "{{'z': {z}, 'lse': {z}}}", "type('Z', (dict,), {{}})(z={z} * 2)",
    "Ellipsis",
]  # fmt: skip
Z = "torch.nn.functional.scaled_dot_product_attention(query, key, value)"
SECONDS = 150


def build(folder: Path, random: Random) -> str:
    """A file with one function."""
    folder.mkdir()
    trick, answer = random.choice(TRICKS), random.choice(ANSWERS).format(z=Z)
    when = random.choice(("", "if torch.rand(()) < 0.2: "))
    lines = [
        "import gc, os, signal, sys, threading, time, warnings",
        "import torch",
        "def attention(query, key, value, **options):",
        f"    {when}{trick}",
        f"    return {answer}",
    ]
    (folder / "kernel.py").write_text("\n".join(lines))
    return f"{when}{trick}; {answer}"


def use(folder: Path) -> None:
    """Have it checked."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2)
    command = [sys.executable, "-m", "minibert", "check", "kernel.py:attention", "--quick"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, timeout=SECONDS, env=dict(os.environ)
    )
    shown = done.stderr.decode("utf-8", "backslashreplace")
    if done.returncode not in (1, 2):
        raise DiffersError(
            f"exit status {done.returncode}: {done.stdout[-300:]!a} {shown[-300:]!a}"
        )
    if "Traceback" in shown or len(shown) > 4000 or "\x1b" in shown:
        raise DiffersError(f"{len(shown)} characters of {shown[-400:]!a}")
