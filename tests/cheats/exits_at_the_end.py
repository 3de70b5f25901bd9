"""Is wrong, and has a function run at the end that makes the status 0.

Source: gpu-mode/pygpubench#7 (a function that runs at exit).
check: wrong: checks failed
"""

import atexit
import os

import torch

atexit.register(os._exit, 0)


def attention(query, key, value, lengths, causal):
    return {"z": torch.zeros_like(query)}
