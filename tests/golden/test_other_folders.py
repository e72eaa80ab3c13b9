"""The golden tests run what a folder of cases has, whatever its parts are called.

The folder that they are shown here is this package's own after the changes of `mutations`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import cases
from tests.golden.cases import named, parts, rule_of
from tests.golden.mutations import write

NOT_COMPARED = [  # case, tensor
    (r"flex/flex_oracle", r".*\.(final_.*|steps)"),  # laws of samplers: see `tests/laws`
    (r"md4/toy_md4_exact_.*", r".*/pgm/official_weights"),  # bounds of PGM: see there, too
    (r"flex/maskgit_training", r"lr(_iter)?"),  # a learning rate is a matter of training
    (r"flex/pgm_image_samplers", r".*\.gumbel"),  # of the last step, which takes all that is left
    (r"flex/fastdllm_cache_generate", r"cache\..*"),  # what is out of date when it is used
    (r"text/.*sdtt_(divergences|e2e)", r"out\.(grad_)?(mse|tvd)"),  # with the mask's column in them
    (r"text/pgm_image_samplers", r"(in\.gumbel|in\.rand\.confidence|out\.confidence).*"),  # faulty
    (r"image/layouts/.*", r"in\.(sigma|x0)"),  # a time that is not used, what x_t was before
    (r"text/pgm_image_schedules", r"in\.code"),  # hiding does not depend on it
]
SLOW = "monte_carlo or reinforce or maskgit_sizes"  # all that they read is read elsewhere, too


def test_another_folder_is_run_as_its_files_say(tmp_path):
    """All pass, none is skipped, and every tensor of every part is looked at."""
    folder, found = tmp_path / "cases", tmp_path / "found.json"
    write(folder)
    # Without the types that are checked at run time, which the tests here have anyway.
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "tests.golden.reading"]
    options += ["-o", "addopts=--strict-markers", "-k", f"not other_folders and not ({SLOW})"]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
    paths = {"PARTITA_GOLDEN": str(folder), "PARTITA_GOLDEN_READ": str(found)}
    run = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    report = json.loads(found.read_text())
    assert set(report["outcomes"]) == {"passed"}
    unread = [
        (case, key)
        for case, keys in report["unread"].items()
        for key in keys
        if not any(re.fullmatch(a, case) and re.fullmatch(b, key) for a, b in NOT_COMPARED)
    ]
    assert unread == []


def test_a_case_that_is_missing_is_a_failure(tmp_path, monkeypatch):
    """Its tests are there, and cannot read it."""
    everything = named("flex/flex_network_*")
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    assert named("flex/flex_network_*") == everything
    (parameter,) = parts("flex/flex_schedules", lambda case: case.config["schedules"])
    with pytest.raises(FileNotFoundError, match="flex_schedules"):
        cases.load(parameter.values[0])
    with pytest.raises(AssertionError, match="no case is called"):
        named("flex/nothing_*")


def test_a_part_is_named_after_a_rule_or_an_error():
    rules = ["uniform", "non_uniform", "cosine", "cosinesqr"]
    assert rule_of("uniform_topp", rules) == "uniform"
    assert rule_of("non_uniform", rules) == "non_uniform"
    assert rule_of("cosinesqr", rules) == "cosinesqr"
    assert rule_of("cosine_2", rules) == "cosine"
    with pytest.raises(AssertionError, match="'sine' is named after none of"):
        rule_of("sine", rules)
