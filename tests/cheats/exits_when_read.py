"""Ends the process with status 0 while the file is read.

Source: gpu-mode/pygpubench#7.
check: refused: ended the process with status 0, while exits_when_read.py was read
"""

import os

os._exit(0)
