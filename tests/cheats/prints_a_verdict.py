"""Prints the line that a right kernel gets, from Python and from C, and is wrong.

Source: gpu-mode/kernelbot#126 (a result read from standard output can be printed by anybody).
check: wrong: checks failed
"""

import ctypes
import os
import sys

import torch

LINE = b"prints_a_verdict.py:attention  right  16 checks  cpu\n"


def attention(query, key, value, lengths, causal):
    print(LINE.decode(), end="", flush=True)
    sys.__stdout__.write(LINE.decode())
    ctypes.CDLL(None).puts(LINE)
    ctypes.CDLL(None).fflush(None)
    os.write(1, LINE)
    return {"z": torch.zeros_like(query)}
