"""What a newcomer is told to try writes what a person has read and found fit to be shown.

`suggested.txt` is a transcript of every command that README, docs, helps and programs suggest and
that needs nothing but the model of the installation. A suggestion that is not in it fails, and so
does one that writes something else: run it, read all of it as a stranger would, choose another text
or seed if it is not fit, and write down what it says.

Texts are compared to the last character, on a CPU. Processors that add up in another order differ
in the last digits of float32; a token changes with them where its draw falls between the two values
alone, which is rare enough to compare texts, and not rare enough for the digits of `score`.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from partita.commands import VERBS, main, module_of
from partita.models.default import NAME, WEIGHTS
from tests.support.pages import PAGES, commands

TRANSCRIPT = Path(__file__).with_name("suggested.txt")
EXAMPLE = re.compile(r"^  (partita .+)$", re.MULTILINE)
HIDDEN = re.compile(r"▒▒▒(?: ▒▒▒)+")


def transcript():
    """The commands that were read, and what they wrote."""
    parts = re.split(r"^\$ (.+)\n", TRANSCRIPT.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


READ = transcript()


def written(command, capsys):
    """What a command writes: without the ends of lines, and long runs of what is hidden."""
    words = shlex.split(command)[1:]
    device = [] if words[0] == "demo" else ["--device", "cpu"]  # which the demonstration runs on
    capsys.readouterr()
    assert main([*words, *device]) == 0
    lines = capsys.readouterr().out.splitlines()
    return HIDDEN.sub("▒▒▒ …", "\n".join(line.rstrip() for line in lines)).rstrip() + "\n"


def runs_at_once(words):
    """Whether a command asks the model of the installation, and nothing else."""
    verb, *words = words
    if verb == "demo":
        return module_of(verb).options(words).seconds is None
    return verb in {"sample", "infill", "score"} and (
        module_of(verb).options(words).model in (None, NAME)
    )


def suggestions(capsys):
    """Every command that somebody is told to try with that model."""
    shown = [command for page in [*PAGES, WEIGHTS / "README.md"] for command in commands(page)]
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        shown += EXAMPLE.findall(capsys.readouterr().out)
    for output in READ.values():
        shown += [each for line in re.findall("Try: (.+)", output) for each in line.split(", or ")]
    split = [shlex.split(command, comments=True) for command in shown]
    return {
        shlex.join(words) for words in split if words[0] == "partita" and runs_at_once(words[1:])
    }


def test_all_that_is_suggested_has_been_read(capsys):
    found = suggestions(capsys)
    scored = {command for command in found if command.startswith("partita score")}
    assert scored  # one does not read digits
    assert {"partita demo", "partita sample"} <= found
    assert found - scored == READ.keys()


@pytest.mark.parametrize("command", READ)
def test_it_writes_what_was_read(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert written(command, capsys) == READ[command].rstrip() + "\n"


def test_scores_that_are_suggested_tell_texts_apart(capsys):
    """Whichever number one looks at, the first text is the likelier one, beyond its error."""
    for command in suggestions(capsys):
        if command.startswith("partita score"):
            assert main([*shlex.split(command)[1:], "--device", "cpu", "--json"]) == 0
            likely, unlikely = json.loads(capsys.readouterr().out)
            for number in ("bits", "bits_per_character", "perplexity"):
                assert likely[number] < unlikely[number], (command, number)
            assert likely["bits"] + 2 * likely["bits_error"] < unlikely["bits"]
