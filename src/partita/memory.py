"""The size of the memory, so that what can never fit is refused before it is allocated."""

from __future__ import annotations

import os
import sys


def machine_memory() -> int:
    """Bytes of this machine's memory; `sys.maxsize` where the system does not say."""
    if sys.platform == "win32":
        return sys.maxsize
    else:  # noqa: RET505 - so that type checkers know which system this is for
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
