"""The command line as a user meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from partita import __version__
from partita.commands import VERBS, main, overview


def run(*words, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "partita", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_demo_trains_writes_and_fills_in():
    text = "The value for the built-in ____ is determined when the interpreter starts."
    result = run("demo", "--seconds", "1", "--infill", text, "--blank-tokens", "2")
    assert result.returncode == 0, result.stderr
    out = result.stdout
    for word in ("Training", "bits per character", "Writing", "Filling in"):
        assert word in out
    filled = " ".join(out.split()).split("The value for")[1:]  # lines wrap after a space
    assert len(filled) == 4  # the question and three answers, the known words in each
    assert all("determined when the interpreter" in line for line in filled)


def test_help_lists_every_verb(capsys):
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        assert capsys.readouterr().out.strip() == overview()
    assert all(verb in overview() for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_teaches_by_example(verb, capsys):
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"  partita {verb}" in out.split("examples:")[1]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"partita {__version__}"


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        (["dmo"], "verb"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--infill", "no blank here"], "--infill"),
        (["demo", "--infill", "word " * 90 + "____"], "--infill"),
        (["demo", "--blank-tokens", "0"], "--blank_tokens"),
        (["demo", "--seed", "-1"], "--seed"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, argument, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"partita: {argument}: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--secnds", "3"], "--secnds: unknown option; did you mean --seconds?"),
        (["demo", "--qqq", "3"], "--qqq: unknown option; partita demo --help shows what there is"),
        (["demo", "--seconds", "soon"], "--seconds: must be a number, got 'soon'"),
        (
            ["demo", "--seconds"],
            "--seconds: needs a value; partita demo --help shows what there is",
        ),
    ],
)
def test_unknown_or_malformed_options(words, message, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"partita: {message}\n"


def test_help_needs_no_torch():
    code = (
        "import sys; from partita.commands import main; main(['--help']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
