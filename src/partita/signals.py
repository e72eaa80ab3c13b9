"""The signals by which other programs ask for an end, as far as this system has them."""

from __future__ import annotations

import signal
import sys

ENDING: tuple[signal.Signals, ...]
"""What asks for an end beside Ctrl-C: other programs, and a terminal whose window is closed."""

if sys.platform == "win32":  # whose terminals send none
    ENDING = (signal.SIGTERM,)
else:
    ENDING = (signal.SIGTERM, signal.SIGHUP)
