"""Settings for every test: one thread per process, since the tests run in parallel processes.

Kernels run in Triton's interpreter where there is no GPU. Also a small model in place of the one
that the package ships, and none at all.
"""

from __future__ import annotations

import os

from tests.support.runs import FAST, SMALL

# For the processes that tests start, too: two threads each would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# And each would compile the library anew, where Python is told to keep no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import gc
import signal
import sys

import pytest
import torch

from tests.support.typechecker import install

install()  # before anything of the library is imported
sys.dont_write_bytecode = False

# Tests send these, also where whoever started them ignores them (nohup; a shell's background).
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is first imported

SHIPPED = "partita.models.default.WEIGHTS"


def pytest_collection_finish():
    """What is there by now stays to the end: it is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A small model, trained and exported."""
    from partita.commands import main  # not before the types of the package are checked
    from tests.support.kill_and_resume import corpus

    folder = tmp_path_factory.mktemp("exported")
    text, run, out = corpus(folder), str(folder / "run"), folder / "model"
    cache = ["--data.cache", str(folder / "tokens")]
    assert main(["train", str(text), "--out", run, *cache, *SMALL.split(), *FAST.split()]) == 0
    assert main(["export", run, str(out)]) == 0
    return out


@pytest.fixture
def shipped(exported, monkeypatch):
    """That model as the one that the package ships."""
    monkeypatch.setattr(SHIPPED, exported)
    return exported


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A package that ships no model, whatever lies in it."""
    monkeypatch.setattr(SHIPPED, tmp_path / "no-weights")


@pytest.fixture
def here(place, monkeypatch):
    """The `place` that a file of tests has made once, as the working folder."""
    monkeypatch.chdir(place)
    return place
