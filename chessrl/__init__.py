"""The library: notation, data, environment, model, sampling, runs. It imports no stage."""

import os
import sys

# In a log file every redrawing of a progress bar stays: twice a minute is enough there. tqdm reads this where it is first imported.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_MININTERVAL", "30")

# Large tensors on large pages: decoding reads a whole cache for each token. torch reads this where it is first imported; elsewhere it does nothing.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
