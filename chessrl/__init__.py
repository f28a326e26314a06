"""The library: notation, data, environment, model, sampling, runs. It imports no stage."""

import ctypes
import os
import sys

# In a log file every redrawing of a progress bar stays: twice a minute is enough there. tqdm reads this where it is first imported.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_MININTERVAL", "30")

# Large tensors on large pages: decoding reads a whole cache for each token. torch reads this where it is first imported; elsewhere it does nothing.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Memory that was freed stays with the process, for the next step's tensors: giving it back to the system and having it cleared again took a sixth
# of an RL step on a CPU. glibc's M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD; other C libraries are left alone.
if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
    for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 * 2**20)):
        libc.mallopt(parameter, value)
