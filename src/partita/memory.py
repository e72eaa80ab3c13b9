"""How much memory there is: what could never fit is refused before any of it is made."""

from __future__ import annotations

import os
import sys


def machine_memory() -> int:
    """Bytes of this machine's memory; any number of them where the system does not tell."""
    if sys.platform == "win32":
        return sys.maxsize
    else:  # noqa: RET505 - so that type checkers know which system this is for
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
