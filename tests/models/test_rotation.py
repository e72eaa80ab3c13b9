"""Models that are read beside a training, which lets go of checkpoints at any moment."""

from __future__ import annotations

import queue
import shutil
import threading
from functools import partial

import pytest
import torch

import partita
from partita.commands import main
from partita.errors import InputError
from partita.files import format
from partita.files.atomic import remove_folder, whole_folder
from partita.models import assembling, checkpoints
from partita.models import find as finding
from partita.models.find import find, read_found

VERBS = ["export run new", "info run --json", "sample run --length 8 --steps 2", "score run text"]


def checkpoint(source, run, step):
    """A checkpoint, as training leaves one."""
    with whole_folder(checkpoints.folder_of(run, step)) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)


@pytest.fixture
def run(exported, tmp_path, monkeypatch):
    """A run that has two checkpoints."""
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        checkpoint(exported, tmp_path / "run", step)
    return tmp_path / "run"


def once_after(monkeypatch, module, name, act):
    """Let something happen right after the first call of a function."""
    function, done = getattr(module, name), []

    def called(*arguments, **named):
        result = function(*arguments, **named)
        if not done:
            done.append(True)
            act()
        return result

    monkeypatch.setattr(module, name, called)


# What happens before and while a model is read, from the choice to the last file.
MOMENTS = ["best", "sha256", "verify", "read_json", "numbers"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_checkpoint_that_is_let_go_gives_way_to_the_next(
    exported, run, monkeypatch, verb, moment
):
    module = checkpoints if moment == "best" else format
    numbers = "shapes" if verb.startswith("info") else "read_tensors"

    def rotate():
        checkpoint(exported, run, 3)
        remove_folder(checkpoints.folder_of(run, 2))

    once_after(monkeypatch, module, numbers if moment == "numbers" else moment, rotate)
    assert main(verb.split()) == 0
    assert [path.name[-1] for path in checkpoints.listed(run)] == ["1", "3"]


def test_a_model_that_is_replaced_is_read_anew(exported, run, monkeypatch):
    """Its parts are those of one model: here the second, whose provenance says so."""
    place = run / "model"
    partita.load(exported).save(place)
    other = partita.load(exported)
    other.provenance["which"] = "second"
    once_after(monkeypatch, assembling, "build", lambda: other.save(place))
    assert partita.load(place).provenance["which"] == "second"


def test_damage_is_damage(run, capsys):
    """What is still there is not read twice."""
    path = checkpoints.folder_of(run, 2) / format.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    seen = []

    def read(folder):
        seen.append(folder)
        return format.verify(folder)

    with pytest.raises(InputError, match="was changed or cut short"):
        read_found(read, run)
    assert len(seen) == 1
    assert main(["export", "run", "new"]) == 2
    assert "model.safetensors was changed or cut short" in capsys.readouterr().err


def test_a_checkpoint_that_was_named_is_gone(run, monkeypatch, capsys):
    place = checkpoints.folder_of(run, 2)
    once_after(monkeypatch, format, "verify", lambda: remove_folder(place))
    assert main(["export", f"run/checkpoints/{place.name}", "new"]) == 2
    told = f"model: run/checkpoints/{place.name} does not exist (here is run/checkpoints/step-"
    assert told in capsys.readouterr().err


def test_a_model_that_never_stands_still(exported, run):
    numbers = iter(range(3, 100))

    def read(folder):
        checkpoint(exported, run, next(numbers))
        remove_folder(folder)
        raise InputError("model", "is damaged")

    with pytest.raises(InputError, match="was replaced 5 times while it was read; try again"):
        read_found(read, run)


def test_a_run_is_never_without_a_checkpoint(tmp_path):
    """One comes before the other goes, however fast they do and whenever somebody looks."""
    folder, over = tmp_path / checkpoints.FOLDER, threading.Event()
    checkpoints.folder_of(tmp_path, 0).mkdir(parents=True)

    def train():
        step = 0
        while not over.is_set():
            step += 1
            (folder / "new").mkdir()
            (folder / "new").rename(checkpoints.folder_of(tmp_path, step))
            checkpoints.folder_of(tmp_path, step - 1).rmdir()

    training = threading.Thread(target=train)
    training.start()
    try:
        found = [checkpoints.best(tmp_path, pass_over_damage=True) for _ in range(2000)]
    finally:
        over.set()
        training.join()
    assert None not in found
    assert len(set(found)) > 1


def test_a_real_race(exported, run, monkeypatch):
    """Checkpoints come and go as fast as they can, and are read all the same.

    It ends soon after a name had to be looked up again. Four go at each read: one fewer than it
    tries, so that it comes to its end on the slowest machine.
    """
    reads, looked_up, turns = [], [], queue.Queue()
    read = partial(assembling.assembled, device=torch.device("cpu"))
    monkeypatch.setattr(finding, "find", lambda *a, **k: looked_up.append(a) or find(*a, **k))

    def train():
        while (step := turns.get()) is not None:
            checkpoint(exported, run, step)
            for path in checkpoints.listed(run)[:-1]:
                remove_folder(path)
            turns.task_done()

    training = threading.Thread(target=train)
    training.start()
    try:
        while len(looked_up) < len(reads) + 3 and len(reads) < 60:
            for step in range(3, 7):
                turns.put(step + 4 * len(reads))
            reads.append(read_found(read, "run"))
            turns.join()
    finally:
        turns.put(None)
        training.join()
    assert len(reads) > 0
    assert checkpoints.listed(run) == [checkpoints.folder_of(run, 2 + 4 * len(reads))]
