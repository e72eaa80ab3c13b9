"""A plugin that writes down what the golden tests did: `python -m pytest -p tests.golden.reading`.

It goes, as JSON, to the file that PARTITA_GOLDEN_READ names: how many tests ended how, and which of
the stored tensors no test has looked at.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.golden import cases

OUTCOMES: collections.Counter[str] = collections.Counter()


def pytest_collection_finish() -> None:
    cases.READ.clear()  # of which parts tests are made is no test


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.outcome] += 1


def pytest_sessionfinish() -> None:
    unread, stored = {}, 0
    for file in sorted(cases.FOLDER.rglob("*.safetensors")):
        if not file.with_suffix(".json").exists():
            continue  # the weights of a checkpoint, which is no case
        name = file.relative_to(cases.FOLDER).as_posix().removesuffix(".safetensors")
        with safe_open(file, "pt") as tensors:
            keys = list(tensors.keys())
        stored += len(keys)
        unread[name] = [key for key in keys if (name, key) not in cases.READ]
    found = {"outcomes": dict(OUTCOMES), "stored": stored, "unread": unread}
    Path(os.environ["PARTITA_GOLDEN_READ"]).write_text(json.dumps(found))
