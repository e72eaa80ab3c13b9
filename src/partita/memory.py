"""How much memory there is: what could never fit is refused before any of it is made."""

from __future__ import annotations

import os


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
