"""Batches measured side by side: a thread each, in which torch computes with one thread.

Small operations, and those of NumPy, use one processor whatever they are given. So on two
processors two batches at a time take less time than one batch on both. And as each batch is
computed by one thread, the bits do not depend on how many threads there are.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import torch

__all__ = ["batch_threads"]


@contextmanager
def batch_threads(device: torch.device) -> Iterator[Executor]:
    """Threads that batches are computed in: on a CPU as many as torch has, else one.

    While they are there, torch computes with one thread in all of the process.
    """
    before = torch.get_num_threads()
    if device.type != "cpu":
        with ThreadPoolExecutor(1) as threads:
            yield threads
        return
    threads = ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield threads
    finally:
        # What has not begun is of no use to anyone after an error or Ctrl-C.
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
