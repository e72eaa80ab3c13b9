"""The command line as a user meets it: the demonstration, the model that is shipped, errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import partita
from partita.commands import VERBS, demo, demo_training, main, overview, program
from partita.models.find import find
from partita.version import __version__

BLANK = "the ____ sat on a mat"
MODULE = str(Path(partita.__file__).with_name("__main__.py"))


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


@pytest.mark.usefixtures("bare")
def test_demo_without_a_model_trains_one(monkeypatch, capsys):
    monkeypatch.setattr(demo_training, "SECONDS", 0.2)
    assert main(["demo"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Training" in out
    assert "for 0.2 seconds" in out
    assert out.count("The value for the built-in") == 4  # the question and three answers


def test_demo_shows_the_shipped_model(shipped, monkeypatch, capsys):
    monkeypatch.setattr(demo_training, "trained", None)  # nothing is trained
    assert main(["demo", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    model = partita.load(shipped)
    assert f"mdlm, {sum(p.numel() for p in model.method.parameters()) / 1e6:.1f} M" in out
    for text in model.sample(demo.SAMPLES, length=demo.SAMPLE_LENGTH, seed=3):
        assert text in out
    answers = " ".join(out.split("Filling in")[1].split("Writing")[0].split())  # lines wrap
    _, between, _ = demo.EXAMPLE.split("____")
    assert answers.count(between.strip()) == 4  # the question and three answers, the known words
    film = out.split("Writing 24 tokens")[1]
    assert f'after "{demo.OPENING}", one at a time' in " ".join(film.split())
    assert "▒" in film
    assert "▒" not in film.rstrip().splitlines()[-1]


@pytest.mark.usefixtures("shipped")
def test_demo_fills_in_what_is_asked_for(capsys):
    assert main(["demo", "--infill", BLANK, "--blank-tokens", "3"]) == 0
    assert capsys.readouterr().out.count(" sat on a mat") == 4


@pytest.mark.usefixtures("shipped")
def test_demo_with_seconds_trains_also_where_a_model_is_shipped(capsys):
    assert main(["demo", "--seconds", "0.2"]) == 0
    assert "Training" in capsys.readouterr().out


def printed(capsys, *words):
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_shipped_model_is_loaded_without_a_name(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = partita.load(shipped).sample(2, seed=1)
    assert partita.load().sample(2, seed=1) == expected
    assert partita.load("default", device="cpu").sample(2, seed=1) == expected
    assert partita.TextModel.from_pretrained("default").sample(2, seed=1) == expected


def test_verbs_without_a_model_use_the_shipped_one(shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = partita.load(shipped)
    texts = {"texts": model.sample(2, seed=1)}
    for name in ([], ["default"], [str(shipped)]):
        assert printed(capsys, "sample", *name, "--count", "2", "--seed", "1") == texts
    assert printed(capsys, "sample", "--count", "2", "--seed", "1", "default") == texts


@pytest.mark.parametrize(
    "words",
    [
        [BLANK, "--count", "2"],
        ["--count", "2", BLANK],
        ["--count=2", "--", BLANK],
        ["default", BLANK, "--count", "2"],
        ["default", "--count", "2", BLANK],
        ["--json", "default", "--count", "2", BLANK],
        ["--count", "2", "default", "--show", "false", BLANK],
        ["--count", "2", "--", "default", BLANK],
    ],
    ids=" ".join,
)
def test_infill_takes_one_word_for_the_text(words, shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["infill", "--json", *words]) == 0
    texts = json.loads(capsys.readouterr().out)["texts"]
    assert texts == partita.load(shipped).infill(BLANK, 2)


def test_default_stands_for_the_shipped_model_in_every_verb(shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("the cat sat on a mat\n\n" * 20)
    assert printed(capsys, "info", "default")["folder"] == str(shipped)
    named = [printed(capsys, "score", name, "the cat") for name in ("default", str(shipped))]
    assert named[0] == named[1]
    sizes = ["notes.txt", "--samples", "2", "--limit", "64"]
    assert printed(capsys, "eval", "default", *sizes)["model"]["path"] == str(shipped)
    assert main(["export", "default", "copy"]) == 0
    assert partita.load("copy").sample(1, seed=1) == partita.load().sample(1, seed=1)
    steps = ["--training.steps", "1", "--run.previews", "0", "--out", "more"]
    assert main(["train", "notes.txt", "--from", "default", *steps]) == 0
    more = partita.load("more")
    assert more.recipe.training.start_from == "default"
    assert more.provenance["started_from"]["terms"] == partita.load().terms


def test_a_path_called_default_is_meant_by_its_name(shipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("default") == shipped
    shutil.copytree(shipped, "default")
    assert str(find("default")) == "default"
    assert partita.load().sample(1, seed=1)  # and the shipped one needs no name
    (tmp_path / "default/manifest.json").unlink()
    with pytest.raises(partita.InputError, match="default holds neither a model"):
        partita.load("default")
    assert partita.load().sample(1, seed=1)


@pytest.mark.parametrize(
    ("called", "found", "expected"),
    [
        ("bin/partita", "/usr/bin/partita", "partita"),
        ("bin/partita", None, "bin/partita"),
        ("/elsewhere/bin/partita", None, "/elsewhere/bin/partita"),
        (MODULE, "/usr/bin/partita", "partita"),
        (MODULE, None, "bin/python -m partita"),
        ("methods/mine.py", None, "python methods/mine.py"),
        ("/elsewhere/pytest/__main__.py", None, "partita"),
    ],
)
def test_what_to_try_is_called_as_this_was(called, found, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = called if called.startswith(("/", "methods")) else str(tmp_path / called)
    monkeypatch.setattr("sys.argv", [script])
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr("shutil.which", {"partita": found}.get)
    assert program() == expected


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


@pytest.mark.parametrize("verb", ["sample", "infill", "score", "eval", "info", "export"])
def test_help_tells_of_the_shipped_model(verb, capsys):
    assert main([verb, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "or default (the model that comes with the library" in out
    lone = verb in ("sample", "infill")
    assert ("without a name, default is used" in out) == lone
    assert ("[model]" in out) == lone


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"partita {__version__}"


@pytest.mark.usefixtures("bare")
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
