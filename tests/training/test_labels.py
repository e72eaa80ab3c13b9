"""Documents with classes: from files to rows, into training, and out again by `--label`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import partita
from partita.commands import main
from partita.data.documents import Corpus
from partita.data.prepare import in_order, prepare
from partita.errors import InputError

SIZES = "--network.width 32 --network.depth 2 --network.heads 2 --network.length 12"
PACE = "--training.steps 120 --training.batch_size 16 --run.previews 0 --run.device cpu"
ROWS = [("aaaa bbbb", "letters"), ("1111 2222", "digits"), ("abab abab", "letters")]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": t, "kind": k}) for t, k in ROWS * 40))
    return path


def test_labels_come_from_fields_files_and_folders(tmp_path, rows):
    found = [piece.label for piece in Corpus(rows, label="kind").pieces()]
    assert found[:3] == ["letters", "digits", "letters"]
    for name in ("poems/one.txt", "poems/two.de.txt", "prose/one.txt"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text("first\n\nsecond")
    folder = tmp_path / "texts"
    assert [p.label for p in Corpus(folder, label="folder").pieces()] == ["poems"] * 4 + [
        "prose"
    ] * 2
    assert [p.label for p in Corpus(folder / "poems", label="file").pieces()] == ["one"] * 2 + [
        "two"
    ] * 2
    with pytest.raises(InputError, match="plain text, which has no field 'kind'"):
        list(Corpus(folder, label="kind").pieces())
    with pytest.raises(InputError, match="line 1 has no class under 'sort'"):
        list(Corpus(rows, label="sort").pieces())


def test_classes_are_in_an_order_that_people_expect():
    assert in_order(["b", "10", "9", "a", "100"]) == ["9", "10", "100", "a", "b"]


def test_tokens_on_disk_keep_the_class_of_each_document(tmp_path, rows):
    prepared = prepare(Corpus(rows, label="kind"), tmp_path / "cache")
    assert prepared.train.classes == prepared.valid.classes == ["digits", "letters"]
    for part in (prepared.train, prepared.valid):
        begins = np.concatenate([[0], part.ends[:-1]])
        for begin, end, label in zip(begins, part.ends, part.labels, strict=True):
            text = prepared.tokenizer.decode(part.read(int(begin), int(end)).tolist())
            assert text.strip()[0].isdigit() == (part.classes[label] == "digits")
    plain = prepare(Corpus(rows), tmp_path / "cache")
    assert plain.folder != prepared.folder
    assert plain.train.classes == []


@pytest.mark.parametrize("method", ["mdlm", "pgm", "ar"])
def test_a_model_writes_what_its_label_asks_for(tmp_path, rows, monkeypatch, capsys, method):
    monkeypatch.chdir(tmp_path)
    words = f"train {rows.name} --data.label kind --network.classes 2 {SIZES} {PACE}"
    assert main(f"{words} --method.name {method} --out run".split()) == 0
    model = partita.load("run", device="cpu")
    assert model.classes == ["digits", "letters"]
    assert model.recipe.data.rows == "padded"
    texts = {name: "".join(model.sample(16, label=name, seed=1)) for name in model.classes}
    digits = {name: sum(c.isdigit() for c in text) for name, text in texts.items()}
    letters = {name: sum(c.isalpha() for c in text) for name, text in texts.items()}
    assert digits["digits"] > 5 * letters["digits"]
    assert letters["letters"] > 5 * digits["letters"]
    assert model.score("1111 2222", label="digits").bits < model.score("1111 2222", label=1).bits
    capsys.readouterr()
    assert main(["sample", "run", "--label", "digits", "--count", "2", "--json"]) == 0
    assert main(["eval", "run", "rows.jsonl", "--samples", "0", "--json", "--replicates", "2"]) == 0
    *_, results = capsys.readouterr().out.strip().splitlines()
    assert json.loads(results)["likelihood"]["given_the_class"] is True


def test_labels_are_dropped_now_and_then_alike_on_any_number_of_processes(tmp_path, rows):
    from partita.data.batches import Order, Padded
    from partita.methods import MDLM
    from partita.networks import Transformer, TransformerConfig
    from partita.randomness import Noise
    from partita.training.objective import Objective

    prepared = prepare(Corpus(rows, label="kind"), tmp_path / "cache")
    order = Order(Padded(prepared.train, 12), 64, 0)
    config = TransformerConfig(vocab_size=257, length=12, width=8, depth=1, heads=2, classes=2)
    objective = Objective(MDLM(Transformer(config)), label_dropout=0.3)
    batch = order.batch(0)
    shown = objective._labels(batch, Noise(0, batch.rows), 5, whole=False)
    assert set(shown.tolist()) == {0, 1, 2}
    assert bool(((shown == batch.label) | (shown == 2)).all())
    half = order.batch(0, slice(32, 64))
    assert torch.equal(shown[32:], objective._labels(half, Noise(0, half.rows), 5, whole=False))
    share = [
        (objective._labels(batch, Noise(0, batch.rows), step, whole=False) == 2).float().mean()
        for step in range(60)
    ]
    assert float(torch.stack(share).mean()) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data.label kind", "network.classes: is 0, but the documents have 2 (digits, letters);"),
        (
            "--network.classes 2",
            "network.classes: is 2, but none of the documents has one; leave it out",
        ),
        ("--data.label sort --network.classes 2", "data.label: rows.jsonl line 1 has no class"),
        (
            "--data.label kind --network.classes 2 --data.rows packed",
            "data.rows: packed rows hold ",
        ),
        ("--training.label_dropout 2", "training.label_dropout: is a share of the labels, got 2"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, rows, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(f"train {rows.name} {SIZES} {PACE} {words}".split()) == 2
    assert f"partita: {message}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
