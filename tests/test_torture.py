"""The program that kills and damages notices faults, and what it finds is kept."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLICE = ("damage/notes.txt.gz", "mutants/codes.npz", "kills/prepare-text")
SIZES = {"damage/notes.txt.gz": 10, "mutants/codes.npz": 60, "kills/prepare-text": 1}
CAUGHT = {
    "accepts": "silent",
    "raises": "uncaught",
    "dies": "uncaught",
    "hangs": "hung",
    "fills the memory": "memory",
    "asks for all memory": "memory",
    "runs something": "code",
    "names nothing": "unclear",
    "leaves a file": "leftover",
    "is half written": "lost",
    "leaves a half": "leftover",
}
SOUND = {"cases", "kills", "refused", "equal", "other", "ran"}


def start(*words):
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )


def run(*words):
    """What a program says, and its exit code."""
    with start(*words) as process:
        said, _ = process.communicate(timeout=1200)
    return said, process.returncode


@pytest.fixture(scope="module")
def planted():
    said, code = run("-m", "tests.support.planted")
    assert code == 0, said
    return json.loads(said.splitlines()[-1])


def test_the_library_as_it_is_has_no_fault(planted):
    counts = planted["sound"]
    assert set(counts) <= SOUND
    assert counts["cases"] == 20
    assert min(counts[kind] for kind in ("refused", "equal", "other")) > 0


@pytest.mark.parametrize("plant", CAUGHT)
def test_a_planted_fault_is_noticed(planted, plant):
    assert planted[plant].get(CAUGHT[plant], 0) > 0, planted[plant]
    assert set(planted[plant]) - SOUND == {CAUGHT[plant]}


def arguments(tmp_path, rounds):
    flags = "--workers", 1, "--out", tmp_path / "torture.json", "--keep", tmp_path / "kept"
    return "--rounds", rounds, *flags


def _left_behind(word, patience=10.0):
    """Processes with a word in their command line that are still there after some seconds."""
    for _ in range(int(patience / 0.1)):
        every = [_command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
        left = [line for line in every if word.encode() in line]
        if not left:
            return []
        time.sleep(0.1)
    return left


def _command_line(path):
    """What a process was started with; nothing if it is gone by now."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_slice_of_every_group_and_a_killed_program_goes_on(tmp_path):
    out = tmp_path / "torture.json"
    words = "benchmarks/torture.py", "--only", *SLICE, *arguments(tmp_path, 2)
    with start(*words) as process:
        while not out.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not _left_behind(str(out)), "processes outlive the one that started them"
    before = json.loads(out.read_text())
    said, code = run(*words)
    assert code == 0, said
    after = json.loads(out.read_text())
    assert {name: 2 * size for name, size in SIZES.items()} == {
        name: counts["cases"] for name, counts in after["areas"].items()
    }
    for name, counts in before["areas"].items():
        assert all(after["areas"][name][key] >= value for key, value in counts.items())
    assert after["totals"]["kills"]["cases"] == 2
    assert after["totals"]["all"]["cases"] == 2 * sum(SIZES.values())
    assert after["faults"] == []
    said, code = run(*words, "--seed", 1)
    assert code == 1
    assert "is of {'seed': 0," in said


def test_a_fault_is_told_with_the_command_that_repeats_it(tmp_path):
    area = "mutants/notes.txt.xz"
    words = "-m", "tests.support.planted", "accepts", "--only", area, *arguments(tmp_path, 1)
    said, code = run(*words)
    assert code == 1, said
    found = json.loads((tmp_path / "torture.json").read_text())
    assert found["totals"]["mutants"]["silent"] == len(found["faults"]) > 0
    repeat = found["faults"][0]["repeat"]
    assert repeat in said
    program, *again = shlex.split(repeat)[1:]
    assert program == "benchmarks/torture.py"
    keep = "--keep", tmp_path / "kept"
    said, code = run("-m", "tests.support.planted", "accepts", *again, *keep)
    assert code == 1
    assert said.startswith("silent, ")
    (file,) = re.findall("The input: (.*)", said)
    assert (Path(file) / "notes.txt.xz").is_file()
