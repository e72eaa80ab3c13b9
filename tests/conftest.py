"""Settings for every test: one thread per process, since the tests run in parallel processes."""

from __future__ import annotations

import os

# For the processes that tests start, too: two threads each would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
