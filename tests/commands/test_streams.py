"""Output on bad days: readers that leave, full disks, closed descriptors, windows that close."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest

import partita
from partita.commands import PRINTING, VERBS, main
from partita.commands.interruptions import interruptible
from partita.commands.streams import READER_LEFT
from partita.errors import Stopped
from partita.models import checkpoints
from partita.signals import stopping
from partita.training.signals import Signals
from tests.support.runs import PACE, SIZES, TRAIN
from tests.support.terminals import on_a_full_disk, without_a_reader

NOTES = "\n\n".join(f"note {n} is short and says little" for n in range(40))

# Verbs that make something, and where it is afterwards.
WORK = {
    f"distill --teacher mdlm {PACE} --out student": "student/round-1/metrics.jsonl",
    "vq digits codes --vq.steps 2 --vq.network.codes 8": "codes/model.safetensors",
    "prepare notes.txt --data.cache cache": "cache",
    "eval mdlm notes.txt --samples 2 --limit 40 --out eval.json": "eval.json",
    "accuracy mdlm notes.txt --task infill --count 2 --out accuracy.json": "accuracy.json",
    "ngram notes.txt --test notes.txt --order 2 --out grams.json": "grams.json",
    "compare mdlm --judge ar --samples 2 --steps [2] --out compare.json": "compare.json",
    f"bench sampling {SIZES} --batch_size 1 --steps 2 --turns 1 --out bench.json": "bench.json",
    "export mdlm exported": "exported/model.safetensors",
}
PRINTS = {
    "": READER_LEFT,
    "--version": READER_LEFT,
    "methods": READER_LEFT,
    "info mdlm": READER_LEFT,
    "sample mdlm --count 3": READER_LEFT,
    "sample mdlm --json": READER_LEFT,
    "infill mdlm 'a __'": READER_LEFT,
    "score mdlm 'a text'": READER_LEFT,
    "train --help": READER_LEFT,
    "sample nowhere": 2,  # which has been said to somebody who left
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, and two small models."""
    folder = tmp_path_factory.mktemp("streams")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("notes.txt").write_text(NOTES)
        for method in ("mdlm", "ar"):
            words = f"{TRAIN} --method.name {method} --out {method} --run.previews 0"
            assert main(words.split()) == 0
    return folder


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("words", WORK, ids=lambda words: words.split()[0])
def test_long_work_goes_on_without_a_reader(words):
    with without_a_reader():
        assert main(words.split()) == 0
    assert Path(WORK[words]).exists()


def test_every_verb_either_prints_or_goes_on():
    tried = {"train", *(words.split()[0] for words in WORK)}
    assert not tried & PRINTING
    assert set(VERBS) - tried - PRINTING == {"import", "report"}


def test_a_run_without_a_reader_is_as_long_as_any():
    with without_a_reader():
        assert main(f"{TRAIN} --out alone --run.previews 1".split()) == 0
    lines = [json.loads(line) for line in Path("alone/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert checkpoints.latest(Path("alone")).name == "step-00000006"
    assert partita.load("alone").sample(1, seed=0)


@pytest.mark.parametrize("words", PRINTS)
def test_what_only_prints_ends_with_its_reader(words):
    with without_a_reader():
        assert main(shlex.split(words)) == PRINTS[words]


@pytest.mark.parametrize("words", ["methods", "sample mdlm", "info mdlm --json"])
def test_what_cannot_be_printed_is_an_error(words, capsys):
    with on_a_full_disk():
        assert main(words.split()) == 2
    assert capsys.readouterr().err == (
        "partita: standard output: No space left on device; make room, then give the same command "
        "again\n"
    )


def test_work_is_done_also_if_it_cannot_be_shown(capsys):
    with on_a_full_disk():
        assert main(f"{TRAIN} --out full".split()) == 2
    assert capsys.readouterr().err == (
        "partita: standard output: No space left on device; the work is done, but not all of it "
        "was shown\n"
    )
    assert checkpoints.latest(Path("full")).name == "step-00000006"


# In a shell --------------------------------------------------------------------------------------


def shell(line):
    """A line of bash in which `partita` is this one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", "-c", f'partita() {{ "$PYTHON" -m partita "$@"; }}\n{line}'],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_run_in_a_pipe_to_head():
    result = shell(f"partita {TRAIN} --out piped 2>&1 | head -1; exit ${{PIPESTATUS[0]}}")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    assert checkpoints.latest(Path("piped")).name == "step-00000006"


def test_a_run_whose_output_is_closed_from_the_start():
    result = shell(f"partita {TRAIN} --out closed <&- >&- 2>&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert checkpoints.latest(Path("closed")).name == "step-00000006"


def test_no_file_gets_the_number_of_a_closed_output():
    """What others write to the terminal would end up in it."""
    code = (
        "import os, sys; from partita.commands import main\n"
        "os.close(1), os.close(2)\n"
        "main(['--version'])\n"
        "sys.exit(os.open('high', os.O_CREAT | os.O_WRONLY))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert result.returncode > 2


# Signals -----------------------------------------------------------------------------------------


@contextmanager
def started(words, **options):
    with subprocess.Popen(
        [sys.executable, "-m", "partita", *words.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # one that has not ended by itself would be waited for without end


ENDLESS = f"{TRAIN} --training.steps 1000000"


def test_a_window_that_closes_saves_the_run():
    """Its terminal is gone when the run writes its last words."""
    reading, writing = os.pipe()
    with started(f"{ENDLESS} --out hung-up", stdout=writing) as process:
        os.close(writing)
        with os.fdopen(reading) as lines:
            assert any("step 2 " in line for line in lines)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    assert checkpoints.latest(Path("hung-up")) is not None


def test_nohup_outlives_its_window():
    with started(f"{TRAIN} --out nohup", stdout=subprocess.PIPE, preexec_fn=ignore) as process:
        assert any("step 2 " in line for line in process.stdout)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert checkpoints.latest(Path("nohup")).name == "step-00000006"


def ignore():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def signalled(number):
    os.kill(os.getpid(), number)
    sum(range(100_000))  # the handler runs before the next line


class Slow:
    """An object that is told when it ends."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        if self.number:
            signalled(self.number)


def ends_by_itself(number):
    Slow(number)


def ends_for_others(number):
    slow = Slow(0)
    seen = weakref.ref(slow, lambda _: signalled(number))
    del slow
    assert seen() is None


def long_work(ends, number):
    ends(number)
    time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ends", [ends_by_itself, ends_for_others])
def test_a_signal_that_meets_an_end_is_not_lost(ends, number, capsys):
    """Exceptions of destructors and of weak references are printed and forgotten by Python."""

    with pytest.raises(Stopped) as stopped, interruptible():
        long_work(ends, number)
    assert stopped.value.number == number
    assert capsys.readouterr().err == ""


def test_a_run_hears_such_a_signal_too():
    with pytest.raises(Stopped), Signals():
        long_work(ends_for_others, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_signal_breaks_was_stopped(number):
    """Compiled code may answer an exception inside it with another one."""

    def work():
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt as error:
            raise AttributeError("no such thing") from error

    with pytest.raises(Stopped) as stopped, interruptible(), stopping():
        work()
    assert stopped.value.number == number


def test_what_python_notes_is_not_what_is_left(monkeypatch, capsys):
    """Where a class is made, newer Pythons add a note to whatever comes through."""

    def work(_words):
        error = KeyboardInterrupt()
        error.add_note("Error calling __set_name__")
        raise error

    monkeypatch.setattr("partita.commands.export.run", work)
    assert main(["export"]) == 130
    said = "partita: stopped; nothing was saved: the same command begins anew\n"
    assert capsys.readouterr().err == said


def test_signals_are_heard_as_before_once_work_is_over():
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in watched]
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert [signal.getsignal(number) for number in watched] == before


def test_an_error_of_its_own_stays_one():
    with pytest.raises(AttributeError), interruptible(), stopping():
        raise AttributeError("no such thing")
