"""The runtime type checker of the test run: every call in the library is checked, shapes too."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

# An int is accepted as a float, as by type checkers (PEP 484).
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
