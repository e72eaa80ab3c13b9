"""Texts that speak to terminals: names of files, prompts, what models write are shown, not obeyed.

Every verb is given names and texts with markup, emoji names, escape sequences, carriage returns,
what reverses the order of letters, and bytes 0. On a terminal none of it arrives as it is, and none
of it vanishes; in a pipe, texts are what they are.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest

import partita
from partita.commands import VERBS, main
from partita.commands.streams import UNSAFE, printable
from tests.support.terminals import on_screen

COMMANDS = Path(partita.__file__).parent / "commands"
# A name that a file system allows, and the same with what only texts can hold.
NAME = "[red]a[bold] :smile: \x1b[31mred \x9b1m \r\u202ebc"
TEXT = f"[/] {NAME} \x00[/red]"
OWN = re.compile(r"\r?\x1b\[[0-9;?]*[A-Za-z]|\r(?=\n)")  # what rich says to a terminal
SIZES = "--network.width 16 --network.depth 1 --network.heads 2 --network.length 96"
PACE = "--training.steps 2 --training.batch_size 4 --run.previews 1 --run.validate_every 1"
TRAIN = f"{SIZES} {PACE} --data.documents line"

# Words of each verb; MODEL, JUDGE and FILE have hostile names, TEXT is one.
TABLE = {
    "train": [f"train FILE {TRAIN} --out NAME", f"train FILE {TRAIN} --out FILE"],
    "distill": [f"distill --teacher MODEL {PACE} --out NAME", "distill FILE --teacher JUDGE"],
    "vq": ["vq digits NAME --vq.steps 1 --vq.network.codes 8", "vq FILE NAME", "vq NAME NAME"],
    "sample": [
        "sample MODEL --prompt TEXT --count 2",
        "sample MODEL --show --length 99999",
        "sample MODEL --prompt TEXT --show",
        "sample MODEL --json --prompt TEXT",
        "sample NAME",
        "sample MODEL --sampler NAME",
        "sample MODEL --label TEXT",
    ],
    "infill": [
        "infill MODEL 'TEXT__' --count 2",
        "infill MODEL 'TEXT__' --show",
        "infill MODEL 'TEXT__' --json",
        "infill MODEL TEXT",
        "infill MODEL 'TEXT__' --hide TEXT",
    ],
    "score": [
        "score MODEL TEXT '[/]' ok",
        "score MODEL --file FILE --replicates 2",
        "score MODEL TEXT --json",
        "score MODEL --file NAME",
        "score NAME TEXT",
    ],
    "eval": ["eval MODEL FILE --samples 2 --judge JUDGE --words FILE", "eval MODEL NAME"],
    "accuracy": ["accuracy MODEL FILE --task infill --count 2", "accuracy MODEL FILE --task NAME"],
    "ngram": ["ngram FILE --order 2 --infill FILE --count 2", "ngram FILE --tokenizer NAME"],
    "compare": [
        "compare MODEL --judge JUDGE --samples 2 --steps [2] --out NAME --picture NAME.png"
    ],
    "report": ["report MODEL", "report NAME FILE"],
    "info": ["info MODEL", "info MODEL --json", "info NAME"],
    "methods": ["methods", "methods TEXT"],
    "prepare": ["prepare FILE --data.cache NAME", "prepare NAME", "prepare FILE --data.rows TEXT"],
    "bench": [
        f"bench sampling {SIZES} --batch_size 1 --steps 2 --turns 1 --out NAME",
        "bench TEXT",
        f"bench sampling {SIZES} --threads TEXT",
    ],
    "export": ["export MODEL NAME", "export MODEL FILE", "export MODEL NAME --push TEXT"],
    "import": ["import FILE NAME", "import NAME NAME", "import FILE NAME --tokenizer NAME"],
    "demo": [
        "demo --seconds 0.1 --infill 'TEXT __'",
        "demo --infill TEXT",
        "demo --TEXT 3",
    ],
    "": ["TEXT"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text and two small models, under hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        line = f"{NAME}, a line of a text with words of its own\n"
        Path(f"{NAME} file").write_text(line * 40)
        for method, name in (("mdlm", "model"), ("ar", "judge")):
            words = f"{TRAIN} --method.name {method} --run.previews 0 --out"
            assert main(["train", f"{NAME} file", *words.split(), f"{NAME} {name}"]) == 0
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A copy in which nothing has been made yet."""
    shutil.copytree(place, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("partita.commands.show.FRAME_SECONDS", 0.0)
    return tmp_path / "here"


def words_of(line):
    """The words of a verb, with hostile names and texts in them."""
    named = {"FILE": f"{NAME} file", "MODEL": f"{NAME} model", "JUDGE": f"{NAME} judge"}
    named |= {"NAME": f"{NAME} new", "TEXT": TEXT}
    pattern = re.compile("|".join(named))
    return [pattern.sub(lambda found: named[found[0]], word) for word in shlex.split(line)]


def checked(shown):
    """What a screen shows, which must hold nothing that a terminal obeys but rich's own."""
    assert "\x1b[31mred" not in shown
    plain = OWN.sub("", shown).replace("\r\n", "\n")
    assert not UNSAFE.findall(plain), plain
    return plain


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("verb", TABLE)
def test_a_terminal_obeys_no_text(verb):
    for line in TABLE[verb]:
        codes = []
        plain = checked(
            on_screen(lambda line=line, codes=codes: codes.append(main(words_of(line))))
        )
        assert codes[0] in (0, 2), plain


def test_every_verb_is_there():
    assert {*TABLE} - {""} == {*VERBS}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "line",
    ["score MODEL TEXT", "info MODEL", "eval MODEL FILE --samples 0", "export MODEL NAME", "NAME"],
)
def test_what_is_hostile_is_seen(line):
    """Markup and names of emoji as they are, the rest as pictures or numbers."""
    plain = checked(on_screen(lambda: main(words_of(line)), columns=400))
    assert "[red]a[bold] :smile: ␛[31mred" in plain or repr(NAME)[1:30] in plain
    assert "\\u202ebc" in plain


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color", "vt100", "nonsense"])
def test_a_terminal_of_any_kind(terminal):
    plain = checked(on_screen(lambda: main(words_of("info NAME")), TERM=terminal))
    assert "[red]a[bold] :smile: ␛[31m" in plain


@pytest.mark.usefixtures("here")
def test_a_pipe_gets_texts_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    model = partita.load(f"{NAME} model")
    for line, texts in (
        ("sample MODEL --prompt TEXT --count 2", model.sample(2, prompt=TEXT)),
        ("infill MODEL 'TEXT __' --count 2", model.infill(f"{TEXT} __", 2)),
    ):
        assert main(words_of(line)) == 0
        assert re.split("\n─+\n", capsys.readouterr().out[:-1]) == texts
        assert all(text.startswith(TEXT) for text in texts)
    assert main(words_of("score MODEL TEXT")) == 0
    # A table has no place for what moves the cursor along its lines.
    shown = TEXT[:45].replace("\r", printable("\r"))
    assert shown in capsys.readouterr().out
    assert main(words_of("info NAME")) == 2
    assert NAME in capsys.readouterr().err


def test_numbers_and_letters_of_all_kinds_are_left_alone():
    text = "naïve Ω 漢字 🎵 é ±\ttab\nline"
    assert printable(text) == text


def calls(path):
    """The names that a file calls, and the line of each call."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func
            yield getattr(name, "id", getattr(name, "attr", "")), node.lineno


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.stem)
def test_verbs_print_through_the_one_console(path):
    """What else prints would read texts as markup, or let them through to a terminal."""
    if path.stem in ("terminal", "streams"):
        return
    makers = {"Console", "Progress", "TextColumn", "SpinnerColumn", "Panel", "Live", "Status"}
    makers |= {"from_markup", "render_markup", "from_ansi", "status", "Text", "print_json"}
    own = {"prepare": {"Progress", "SpinnerColumn"}, "show": {"Live"}}
    found = {(name, line) for name, line in calls(path) if name in makers - {"print_json"}}
    assert {name for name, _ in found} <= own.get(path.stem, set()), found
    plain = [line for name, line in calls(path) if name == "print"]
    source = path.read_text().splitlines()
    for line in plain:  # of a console, or of what has no text of a user's in it
        text = source[line - 1]
        allowed = "console.print(" in text or "Terminal().print(" in text
        assert allowed or path.stem in ("__init__", "train", "distill", "report"), (line, text)
