"""Every command and program that README and docs show is run, page by page, from top to bottom.

Files that the pages speak of are small, and `partita train` gets small sizes where a page gives
none. Commands that end in "# needs ..." want machines or downloads that a test does not have; their
options are checked all the same.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from partita.commands import main, module_of
from tests.support.pages import PAGES, ROOT, blocks, commands

SIZES = {
    "--training.steps": "6",
    "--network.width": "32",
    "--network.depth": "1",
    "--network.heads": "2",
    "--network.length": "48",
    "--run.validate_every": "3",
    "--run.checkpoint_every": "3",
    "--run.previews": "1",
}


def files(page):
    """The blocks that begin with the name of a file, as (name, body)."""
    titled = ((re.match(r"# (\S+\.(?:yaml|py))\n", body), body) for _, body in blocks(page))
    return [(title[1], body) for title, body in titled if title]


def smaller(command):
    """The words of a command, with small sizes in place of large ones or none."""
    words = shlex.split(command, comments=True)
    if not {"train", "distill"} & {*words}:
        return words
    kept = {"--from", "--teacher"} & {*words}  # a trained network keeps its sizes
    fixed = "network" if kept else "nothing"
    for flag, value in SIZES.items():
        given = flag == "--network.length" and "--network.grid" in words  # an image has its size
        if not flag.startswith(f"--{fixed}") and not given:
            words += [flag, value]
    return words


def write_files(place):
    """The files that the pages speak of."""
    notes = "\n\n".join(f"note {n} is short, and says so" for n in range(60))
    for name in ("notes.txt", "more.txt", "test.txt", "corpus/one.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(notes)
    story = "\n\n".join(f"This is {n}. It has {n} parts. It ends with {n}." for n in range(20))
    (place / "story.txt").write_text(story)
    rows = "\n".join(json.dumps({"body": f"row {n} of some"}) for n in range(60))
    kinds = [{"text": "abc" * 9, "kind": "letters"}, {"text": "123" * 9, "kind": "digits"}]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, kinds * 30)))
    (place / "dump.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (place / "folder-of-jsonl").mkdir()
    (place / "folder-of-jsonl/rows.jsonl").write_text(rows)


def execute(command, place):
    words = smaller(command)
    if words[0] == "partita":
        assert main(words[1:]) == 0, command
        return
    program = {"torchrun": ["-m", "torch.distributed.run"], "python": []}[words[0]]
    run_python([*program, *words[1:]], place)


def check_options(command, monkeypatch):
    """Of a command that is not run: of the library, or of a program in benchmarks/."""
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        program = ROOT / words[1]
        monkeypatch.syspath_prepend(program.parent)
        importlib.import_module(program.stem).parsed(words[2:])
    else:
        verb, *words = words[words.index("partita") + 1 :]
        module_of(verb).options(words)


def run_python(words, place):
    """A program in a process of its own, with one thread: the tests run beside each other."""
    result = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_shows_works(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
    write_files(tmp_path)
    for folder in ("recipes", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for title, body in files(page):
        (tmp_path / title).write_text(body)
    for command in commands(page):
        if "# needs" in command:
            check_options(command, monkeypatch)
        else:
            execute(command, tmp_path)
    # The programs of a page are one: later ones use names of earlier ones.
    saved = [body for _, body in files(page)]
    shown = [body for name, body in blocks(page) if name == "python" and body not in saved]
    program = "\n".join(shown)
    run_python(["-c", program], tmp_path)


def test_the_pages_show_commands_and_mark_those_that_need_machines():
    shown = [command for page in PAGES for command in commands(page)]
    verbs = {command.split()[1] for command in shown if command.startswith("partita ")}
    assert {"train", "sample", "infill", "score", "eval", "info", "prepare", "export"} <= verbs
    assert {"import", "methods", "report", "distill", "compare", "vq", "accuracy", "ngram"} <= verbs
    many = [command for command in shown if "--nnodes" in command or "per-node 8" in command]
    assert many
    assert all("# needs" in command for command in many)
