"""Settings for every test: one thread per process, since the tests run in parallel processes."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
