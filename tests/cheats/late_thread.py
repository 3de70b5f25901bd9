"""Returns at once; a thread writes z afterwards. On a GPU the same is done on another stream.

Source: ScalingIntelligence/KernelBench#82 (work on another stream).
check: wrong: the work goes on behind it, in a thread
"""

import threading
import time

import torch
from plain_attention import right


def attention(query, key, value, lengths, causal):
    z = torch.zeros_like(query)

    def work():
        time.sleep(0.002)
        z.copy_(right(query, key, value, lengths, causal))

    threading.Thread(target=work).start()
    return {"z": z}
