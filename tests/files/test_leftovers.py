"""What killed writers leave is removed by the next; what live ones write, and all else, stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from filelock import FileLock

from partita import load
from partita.commands import main
from partita.files import atomic as files
from partita.files.atomic import (
    clear_leftovers,
    remove_folder,
    remove_partial,
    whole_file,
    whole_folder,
)

WRITER = """
import os, signal, sys
from pathlib import Path
from partita.files import atomic as files
place, moment = Path(sys.argv[1]), sys.argv[2]
def die(): os.kill(os.getpid(), signal.SIGKILL)
rename, moves = Path.rename, []
def counted(path, target):
    moves.append(path)
    if moment == f"before move {len(moves)}": die()
    return rename(path, target)
Path.rename = counted
if moment == "removing":
    files.shutil.rmtree = lambda path: die()
    files.remove_folder(place)
write = files.whole_file if moment == "file" else files.whole_folder
with write(place) as partial:
    if moment == "file":
        partial.write_text("half"); die()
    (partial / "part").write_text("new")
    if moment == "alive":
        print("writing", flush=True); sys.stdin.read()
    if moment == "filling": die()
"""


def start(place, moment):
    words = [sys.executable, "-c", WRITER, str(place), moment]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def killed(place, moment):
    with start(place, moment) as process:
        assert process.wait() == -signal.SIGKILL


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("moment", ["filling", "file"])
def test_the_next_writer_clears_away_whatever_it_writes_itself(tmp_path, moment):
    killed(tmp_path / "model", moment)
    assert any(name.startswith("model.partial-") for name in names(tmp_path))
    with whole_file(tmp_path / "notes") as partial:
        partial.write_text("x")
    assert names(tmp_path) == ["notes"]


def test_what_somebody_is_writing_stays(tmp_path):
    with start(tmp_path / "model", "alive") as other:
        assert other.stdout.readline() == "writing\n"
        with whole_folder(tmp_path / "second"):
            pass
        remove_partial(tmp_path)  # in a folder of one's own, too
        other.communicate("")
    assert other.returncode == 0
    assert names(tmp_path) == ["model", "second"]
    assert (tmp_path / "model" / "part").read_text() == "new"


def test_what_looks_like_a_leftover_and_is_none_stays(tmp_path):
    mine = [
        "a.partial-7",
        "b.partial-7-0123abcd",  # no lock was ever beside it
        "c.lock",
        "d.partial-x-0123abcd.lock",
        ".partial-7-0123abcd.lock",
        "e.partial-7-0123abcd.lock.txt",
    ]
    for name in mine:
        (tmp_path / name).write_text("mine")
    clear_leftovers(tmp_path)
    with whole_file(tmp_path / "f") as partial:
        partial.write_text("x")
    assert names(tmp_path) == sorted([*mine, "f"])


def test_a_writer_whose_lock_another_process_takes_chooses_another_name(tmp_path, monkeypatch):
    """Who clears away may find a lock before its writer holds it, and will remove what it names."""
    tokens = iter(["0123abcd", "4567cdef"])
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: next(tokens))
    taken = f"model.partial-{os.getpid()}-0123abcd"
    with FileLock(tmp_path / f"{taken}.lock"), whole_folder(tmp_path / "model") as partial:
        assert partial.name.endswith("-4567cdef")
    assert "model" in names(tmp_path)


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), NotImplementedError()])
def test_where_files_cannot_be_locked_they_are_written(tmp_path, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    (tmp_path / "a.partial-7-0123abcd.lock").write_text("")
    (tmp_path / "a.partial-7-0123abcd").write_text("perhaps somebody's")
    with whole_folder(tmp_path / "model") as partial:
        (partial / "part").write_text("new")
    left = ["a.partial-7-0123abcd", "a.partial-7-0123abcd.lock"]
    assert names(tmp_path) == [*left, "model"]


def test_a_link_in_the_place_of_a_lock_leads_nowhere(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a.partial-7-0123abcd.lock").symlink_to(tmp_path / "mine")
    (tmp_path / "a.partial-7-0123abcd").write_text("mine")
    clear_leftovers(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "a.partial-7-0123abcd").read_text() == "mine"


@pytest.mark.parametrize(
    ("moment", "content"), [("before move 1", "old"), ("before move 2", "new"), ("filling", "old")]
)
def test_replacing_is_complete_or_did_not_happen(tmp_path, moment, content):
    """Between the two renames nothing has the name; what was written is whole then."""
    place = tmp_path / "model"
    with whole_folder(place) as partial:
        (partial / "part").write_text("old")
    killed(place, moment)
    assert place.exists() == (moment != "before move 2")
    clear_leftovers(tmp_path)
    assert names(tmp_path) == ["model"]
    assert (place / "part").read_text() == content


def test_a_removal_that_was_interrupted_is_carried_out(tmp_path):
    with whole_folder(tmp_path / "model") as partial:
        (partial / "part").write_text("old")
    killed(tmp_path / "model", "removing")
    assert not (tmp_path / "model").exists()
    assert names(tmp_path) != []
    clear_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_errors_and_removals_leave_no_locks(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "model"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "file"):
        raise ZeroDivisionError
    (tmp_path / "gone").mkdir()
    remove_folder(tmp_path / "gone")
    assert names(tmp_path) == []


EXPORT = """
import os, signal, sys
from partita.files import atomic as files
from partita.commands import main
files.to_disk = lambda path: os.kill(os.getpid(), signal.SIGKILL)
main(["export", *sys.argv[1:]])
"""


def test_a_killed_export_leaves_nothing_for_good(exported, tmp_path):
    words = [sys.executable, "-c", EXPORT, str(exported), str(tmp_path / "first")]
    assert subprocess.run(words, check=False, env=os.environ).returncode == -signal.SIGKILL
    assert any(name.startswith("first.partial-") for name in names(tmp_path))
    assert main(["export", str(exported), str(tmp_path / "second")]) == 0
    assert names(tmp_path) == ["second"]
    load(tmp_path / "second", device="cpu")
