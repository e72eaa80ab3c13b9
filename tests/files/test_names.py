"""Names of models, tokenizers and data sets: what is here stays here, what is the hub's is asked.

The hub is a small one on this machine, which counts what it is asked.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch

from partita.commands import main
from partita.errors import InputError
from partita.files.names import Hosted, hosted, near
from tests.golden import cases
from tests.support.checkpoints import lightning, parameters, state_of, write_tokenizer
from tests.support.small_hub import outcome, serving

HERE = [
    "./owner/name",
    "../name",
    "/owner/name",
    "~/name",
    "runs/name",
    "runs/run/checkpoints",
    "here/name",
    "name",
    "a/b/c",
    "runs\\name",
    "owner\\name",
    "owner/model.safetensors",
    "owner/tokenizer.json",
    "owner/weights.ckpt",
    "a b/c",
    "..",
    "",
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a folder in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", HERE)
@pytest.mark.usefixtures("here")
def test_names_of_places_here(name):
    assert hosted(name, "model") is None


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/name", Hosted("owner/name")),
        ("hf:owner/name", Hosted("owner/name")),
        ("hf:here/name", Hosted("here/name")),  # with the prefix always
        ("hf:runs/name", Hosted("runs/name")),
        ("hf:gpt2", Hosted("gpt2")),
        ("hf:owner/name@v1", Hosted("owner/name", "v1")),
        ("hf:owner/name@refs/pr/1", Hosted("owner/name", "refs/pr/1")),
        ("owner/model-1.5", Hosted("owner/model-1.5")),
    ],
)
@pytest.mark.usefixtures("here")
def test_names_on_the_hub(name, asked):
    assert hosted(name, "model") == asked


@pytest.mark.parametrize("name", ["hf:", "hf:./here", "hf:/here", "hf:a/b/c", "hf:a b/c", "hf:a/@"])
@pytest.mark.usefixtures("here")
def test_what_the_prefix_does_not_go_with(name):
    with pytest.raises(InputError, match="write hf:OWNER/NAME, or a path without hf:"):
        hosted(name, "model")


def test_what_is_near(here):
    for name in ("runs/tiny", "runs/notes-mdlm", "runs/other", "models/first", "models/second"):
        (here / name).mkdir(parents=True)
    (here / "runs" / "tiny.partial-7-0123abcd").mkdir()
    (here / "runs" / "tinny.txt").write_text("")
    assert near("runs/tinny", Path.is_dir) == " (here is runs/tiny)"
    assert near("tiny") == " (here is runs/tiny, runs/tinny.txt)"
    assert near("rnus/notes-mdml") == " (here is runs/notes-mdlm)"
    assert near("models/else") == " (here is models/first, models/second)"
    assert near("models\\frist") == " (here is models/first)"
    assert near("nothing/of/the/kind") == ""


MISTYPED = [
    "sample runs/tinny",
    "infill runs/tinny note",
    "score ./runs/tinny note",
    "eval runs/tinny",
    "compare runs/tinny --judge runs/tiny",
    "compare runs/tiny --judge runs/tinny",
    "info runs/tinny",
    "export runs/tinny new",
    "report runs/tinny",
    "distill --teacher runs/tinny notes.txt",
    "train notes.txt --from runs/tinny",
    "accuracy runs/tinny notes.txt --task choices",
    "train notes.txt --tokenizer.name runs/tinny",
    "train digits --tokenizer.name runs/tinny",
    "prepare notes.txt --tokenizer.name runs/tinny",
    "prepare hf:./runs/tinny",
    "import runs/tinny.ckpt new",
    "ngram notes.txt --samples 1 --tokenizer runs/tinny",
]


def test_names_of_places_here_never_leave_the_machine(exported, tmp_path):
    (tmp_path / "notes.txt").write_text("a note\n\nanother")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"text": "a row of a folder"}\n' * 20)
    (tmp_path / "owner").mkdir()
    shutil.copytree(exported, tmp_path / "runs" / "tiny")
    write_tokenizer(tmp_path / "tokenizer.json")
    others = [
        "prepare hf:./rows --data.cache cache",
        "prepare hf:rows --data.cache cache",
        "prepare notes.txt --tokenizer.name owner/name",
        "info owner/name",
    ]
    with serving(tmp_path) as hub:
        result = outcome([words.split() for words in (*others, *MISTYPED)], tmp_path, hub.address)
        assert hub.asked == []
    assert result.stdout.splitlines()[-1] == str([0, *[2] * (3 + len(MISTYPED))]), result.stderr
    both, tokenizer, model, *lines = (
        line for line in result.stderr.splitlines() if line.startswith("partita: ")
    )
    assert "hf:rows asks the hub, and rows is a folder here too; write hf:./rows for" in both
    assert "unknown file 'owner/name'" in tokenizer
    assert "owner/name does not exist" in model
    for words, line in zip(MISTYPED, lines, strict=True):
        assert "tinny" in line, words
        if "digits" not in words:  # whose tokenizers are told apart first
            assert "(here is runs/tiny)" in line, words
            assert "hf:" in line, words


ABSENT = {
    "sample owner/name": "hf download owner/name --local-dir name, bring that folder here and name",
    "sample hf:owner/name@v1": "hf download owner/name --revision v1 --local-dir name, bring that",
    "prepare notes.txt --tokenizer.name owner/name": (
        "hf download owner/name tokenizer.json --local-dir name, bring that folder here and give "
        "--tokenizer.name name/tokenizer.json"
    ),
    "prepare hf:owner/name": (
        "hf download owner/name --repo-type dataset --local-dir name, bring that folder here and "
        "give hf:./name"
    ),
    "import model.ckpt new": (
        "hf download openai-community/gpt2 tokenizer.json --local-dir gpt2, bring that folder here "
        "and give --tokenizer gpt2/tokenizer.json"
    ),
    "import hf:owner/name/sub/a.ckpt@v1 new --tokenizer tokenizer.json": (
        "hf download owner/name sub/a.ckpt --revision v1 --local-dir name, bring that folder here "
        "and give name/sub/a.ckpt instead"
    ),
}


def check_absent(lines):
    """Each line says what is missing, and the command that brings it."""
    for line, command in zip(lines, ABSENT.values(), strict=True):
        assert "the hub cannot be reached (" in line
        assert "; where there is a network run hf download" in line
        assert command in line


@pytest.fixture
def lacking(tmp_path):
    """All that `ABSENT` needs, but for what is on the hub."""
    (tmp_path / "notes.txt").write_text("a note")
    state = state_of(cases.own("text/mdlm_dit"))
    average = [state[name] for name in parameters(state)]
    torch.save(lightning(state, average), tmp_path / "model.ckpt")
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def test_a_hub_that_is_busy_is_asked_once(lacking):
    """Its own functions would ask seven times, and wait for half a minute."""
    with serving(lacking, 503) as hub:
        result = outcome([words.split() for words in ABSENT], lacking, hub.address)
        assert len(hub.asked) == len(ABSENT)
    assert result.stdout.splitlines()[-1] == str([2] * len(ABSENT)), result.stderr
    check_absent(result.stderr.splitlines())
    assert "it answers 503" in result.stderr


def test_offline_nothing_is_asked(lacking, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(lacking)
    assert [main(words.split()) for words in ABSENT] == [2] * len(ABSENT)
    check_absent(capsys.readouterr().err.splitlines())


def test_what_comes_from_the_hub_is_there_without_a_network(exported, lacking):
    served = lacking / "served" / "owner"
    shutil.copytree(exported, served / "model")
    for name in ("foreign", "tokens"):
        (served / name).mkdir()
    (served / "foreign" / "model.safetensors").write_bytes(b"gigabytes")
    write_tokenizer(served / "tokens" / "tokenizer.json")
    (lacking / "tokens").mkdir()  # with the prefix, a folder here is no hindrance
    (lacking / "notes.txt").write_text("w1 w2 w3 last\n\nw4 w5")
    prepare = ["prepare", "notes.txt", "--data.cache", "cache", "--tokenizer.name"]
    calls = [
        ["sample", "hf:owner/model@main", "--length", "8", "--steps", "2"],
        ["info", "owner/model"],
        [*prepare, "hf:owner/tokens"],
        ["info", "owner/foreign"],
        ["info", "hf:owner/nobody"],
    ]
    with serving(lacking / "served") as hub:
        result = outcome(calls, lacking, hub.address)
        foreign = [line for line in hub.asked if "foreign" in line]
    assert foreign == ["HEAD /owner/foreign/resolve/main/manifest.json"]  # and no gigabytes
    assert result.stdout.splitlines()[-1] == "[0, 0, 0, 2, 2]", result.stderr
    told = [line for line in result.stderr.splitlines() if line.startswith("partita: ")]
    assert told == [
        "partita: model: owner/foreign is no folder here, and the hub does not give it: the "
        "repository has no manifest.json; partita import makes a model of weights that others "
        "published",
        "partita: model: hf:owner/nobody: the hub does not give it: there is no such repository, "
        "or it is closed to you; check the name, or name a run folder, a model folder or "
        "hf:OWNER/NAME on the hub, or default for the model that this installation comes with",
    ]
    absent = [words.split() for words in ABSENT]
    result = outcome([*calls[:3], *absent], lacking, hub.address)  # where nobody listens by now
    codes = str([0, 0, 0, *[2] * len(absent)])
    assert result.stdout.splitlines()[-1] == codes, result.stderr
    check_absent(result.stderr.splitlines())
