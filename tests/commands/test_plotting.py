"""Pictures of curves, and what is said where nothing can draw them."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

import partita
from partita import plotting
from partita.commands import main
from partita.errors import InputError
from tests.support.examples import example
from tests.support.runs import FAST, SMALL

ROOT = Path(__file__).parents[2]
HOW = "pip install 'partita[plots]'"
SIZES = partita.TransformerOptions(length=8, width=8, depth=1, heads=1)


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """An empty folder, on a machine without matplotlib."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(name, place):
    """A model of a method, as new."""
    recipe = partita.Recipe(method=partita.MethodOptions(name), network=SIZES)
    method = recipe.method.build(SIZES, 256)
    partita.TextModel(method, partita.ByteTokenizer(), recipe).save(place)


def imported(path):
    """The modules that a file imports when it runs; what stands under TYPE_CHECKING does not."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_one_module_loads_matplotlib():
    files = [path for folder in ("src", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    for path in files:
        assert not any(name.startswith("matplotlib") for name in imported(path)), path


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("compare a --judge b --picture x.png", "--picture"),
        ("bench growth --picture x.png", "--picture"),
        ("eval a b.txt --profile x.png", "--profile"),
        ("report a --out x.png", "--out"),
    ],
)
def test_a_picture_is_refused_before_anything_is_done(plain, capsys, words, flag):
    assert main(words.split()) == 2
    expected = f"partita: {flag}: needs the package matplotlib; {HOW}, or leave it out\n"
    assert capsys.readouterr().err == expected
    assert list(plain.iterdir()) == []


def test_from_python_too(plain):
    with pytest.raises(InputError, match=r"needs the package matplotlib; .*partita\[plots\]"):
        example("lengths").draw_lengths({"a": {1: 1.0}}, plain / "x.png")
    assert list(plain.iterdir()) == []


def test_training_goes_on_without_curves_and_says_so_once(plain, capsys):
    (plain / "notes.txt").write_text("\n\n".join(f"note {n} is short" for n in range(900)))
    words = f"train notes.txt --out run --run.validate_every 4 --run.log_every 2 {SMALL} {FAST}"
    assert main([*words.split(), "--data.cache", "tokens"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(f"curves.png is not drawn: that needs the package matplotlib ({HOW}).") == 1
    assert (plain / "run/metrics.jsonl").read_text().count("valid_bits_error") == 2
    assert not list(plain.rglob("*.png"))


def test_a_report_is_a_table_without_a_picture(plain, capsys):
    saved("genmd4", plain / "model")
    assert main(["report", "model", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out).keys() == {"smallest", "largest"}
    assert said.err == f"No schedules.png is drawn: {plotting.NO_PLOTS}\n"
    assert not list(plain.glob("*.png"))


@pytest.mark.usefixtures("plain", "shipped")
def test_the_demonstration_needs_no_pictures(capsys):
    assert main(["demo"]) == 0
    assert len(capsys.readouterr().out) > 100
