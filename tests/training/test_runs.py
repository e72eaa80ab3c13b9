"""Runs from recipes: what they leave, how they go on, what they refuse."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import partita
from partita.config.data import DataOptions, TokenizerOptions
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.config.training import RunOptions, TrainingOptions
from partita.errors import InputError
from partita.models import checkpoints
from partita.networks.options import TransformerOptions
from partita.training.callbacks import Callback
from partita.training.runner import default_folder, train
from tests.support.kill_and_resume import corpus


@pytest.fixture
def recipe(tmp_path):
    return Recipe(
        data=DataOptions(
            path=str(corpus(tmp_path)), cache=str(tmp_path / "tokens"), validation_fraction=0.1
        ),
        network=TransformerOptions(length=16, width=32, depth=2, heads=2),
        training=TrainingOptions(steps=8, batch_size=8, learning_rate=0.01, ema_decay=0.9),
        run=RunOptions(
            device="cpu",
            validate_every=2,
            checkpoint_every=2,
            log_every=1,
            previews=1,
            keep_checkpoints=1,
        ),
    )


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder):
    return load_file(checkpoints.latest(folder) / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def section(recipe, **sections):
    """A recipe with some keys of some sections changed."""
    changed = {name: replace(getattr(recipe, name), **keys) for name, keys in sections.items()}
    return replace(recipe, **changed)


def test_a_run_leaves_everything(tmp_path, recipe):
    out, seen = tmp_path / "run", []

    class Previews(Callback):
        def on_preview(self, step, samples):
            seen.append((step, len(samples)))

    assert train(recipe, out, Previews()) == 0
    assert seen == [(2, 1), (4, 1), (6, 1), (8, 1)]
    lines = metrics(out)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["step"] for line in lines if "valid_bits" in line] == [2, 4, 6, 8]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (out / "samples").iterdir()) == [
        f"step-{step:08}.txt" for step in (2, 4, 6, 8)
    ]
    best = min((line["valid_bits"], line["step"]) for line in lines if "valid_bits" in line)[1]
    names = {path.name for path in checkpoints.listed(out)}
    assert names == {f"step-{best:08}", "step-00000008"}
    assert checkpoints.best(out).name == f"step-{best:08}"
    model = partita.load(out, device="cpu")
    assert model.recipe == recipe.resolved()
    assert model.recipe.data.rows == "packed"
    assert model.provenance["step"] == best
    assert len(model.sample(2, length=5)) == 2


def test_the_best_validation_is_kept_whenever_it_comes(tmp_path, recipe):
    """Validations between two checkpoints may be the best, and then their weights are kept."""
    out = tmp_path / "run"
    wild = section(
        recipe,
        training={"learning_rate": 0.3, "steps": 12, "warmup": 0.5},
        run={"validate_every": 1, "checkpoint_every": 100, "previews": 0},
    )
    train(wild, out)
    scores = {line["step"]: line["valid_bits"] for line in metrics(out) if "valid_bits" in line}
    best = min(scores, key=scores.get)
    assert best < 12  # the learning rate is too high to end well
    assert checkpoints.best(out) == checkpoints.folder_of(out, best)
    assert checkpoints.latest(out) == checkpoints.folder_of(out, 12)


def test_a_finished_run_has_nothing_left_to_do(tmp_path, recipe):
    out = tmp_path / "run"
    train(recipe, out)
    before, count = weights(out), len(metrics(out))
    train(recipe, out)
    assert same(weights(out), before)
    assert len(metrics(out)) == count


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"optimizer": "muon"}},
        {"network": {"dropout": 0.2}},
        {"training": {"precision": "bfloat16"}},
        {"data": {"rows": "padded", "documents": "line"}},
        {"data": {"document_attention": True}},
        {"method": {"name": "md4"}},
        {"method": {"name": "ar"}},
        {"method": {"name": "flexmdm"}, "network": {"length": 100}},
        {
            "method": {"name": "flexmdm", "options": {"gaps": "distribution"}},
            "data": {"longer": "cut"},
        },
        {"tokenizer": {"name": "bpe", "vocab_size": 300}},
        {"run": {"micro_batch": 3}},
    ],
    ids=str,
)
def test_a_run_that_lost_its_second_half_does_it_again_bit_by_bit(tmp_path, recipe, change):
    recipe = section(
        recipe, run={"previews": 0, "keep_checkpoints": 9, **change.pop("run", {})}, **change
    )
    out = tmp_path / "run"
    train(recipe, out)
    before, lines = weights(out), metrics(out)
    for step in (6, 8):
        shutil.rmtree(checkpoints.folder_of(out, step))
    train(recipe, out)
    assert same(weights(out), before)
    key = [(line["step"], line.get("loss")) for line in lines]
    assert [(line["step"], line.get("loss")) for line in metrics(out)] == key


def test_parts_and_recomputation_may_change_on_the_way(tmp_path, recipe):
    """The section `run` is free: the same steps, up to rounding."""
    out, other = tmp_path / "run", tmp_path / "other"
    recipe = section(recipe, run={"previews": 0, "keep_checkpoints": 9})
    train(recipe, out)
    shutil.copytree(out, other)
    for step in (6, 8):
        shutil.rmtree(checkpoints.folder_of(other, step))
    train(section(recipe, run={"micro_batch": 2, "activation_checkpointing": True}), other)
    for name, tensor in weights(out).items():
        torch.testing.assert_close(weights(other)[name], tensor, rtol=0, atol=1e-5)


def test_a_changed_recipe_or_text_is_refused_with_what_changed(tmp_path, recipe):
    out = tmp_path / "run"
    train(recipe, out)
    changed = section(recipe, training={"seed": 3, "max_grad_norm": 2.0})
    with pytest.raises(InputError) as caught:
        train(changed, out)
    assert "training.max_grad_norm: 1.0 -> 2.0\n  training.seed: 0 -> 3" in str(caught.value)
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.copy(recipe.data.path, tmp_path / "elsewhere"))
    train(section(recipe, data={"path": str(moved)}), out)  # the same text at another place
    with moved.open("a") as stream:
        stream.write("\n\nmore")
    with pytest.raises(InputError, match="run on another text"):
        train(section(recipe, data={"path": str(moved)}), out)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, recipe):
    out = tmp_path / "run"
    wild = section(
        recipe, training={"learning_rate": 1e30, "warmup": 0.0}, run={"checkpoint_every": 1}
    )
    with pytest.raises(InputError) as caught:
        train(wild, out)
    text = str(caught.value)
    assert "at step 1, whose rows begin at tokens" in text
    assert f"last good checkpoint: {checkpoints.folder_of(out, 1)}" in text
    assert [path.name for path in checkpoints.listed(out)] == ["step-00000001"]


def test_fine_tuning_starts_from_the_weights_and_keeps_the_tokenizer(tmp_path, recipe):
    first = section(recipe, tokenizer={"name": "characters"})
    train(first, tmp_path / "first")
    text = tmp_path / "more.txt"
    text.write_text("\n\n".join(["the cat ran to the door"] * 50))
    second = section(
        first,
        data={"path": str(text)},
        training={"start_from": str(tmp_path / "first"), "steps": 2, "learning_rate": 1e-9},
    )
    train(second, tmp_path / "second")
    old, new = partita.load(tmp_path / "first"), partita.load(tmp_path / "second")
    assert new.tokenizer.describe() == old.tokenizer.describe()
    for ours, theirs in zip(new.method.parameters(), old.method.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    origin = new.provenance["started_from"]
    assert origin["path"] == str(tmp_path / "first")


def test_a_wall_clock_budget_counts_over_resumes(tmp_path, recipe):
    timed = section(recipe, training={"steps": None, "seconds": 2.0}, run={"previews": 0})
    out = tmp_path / "run"
    train(timed, out)
    lines = metrics(out)
    assert lines[-1]["seconds" if "seconds" in lines[-1] else "valid_bits"]
    last = max(line["seconds"] for line in lines if "seconds" in line)
    assert last >= 2.0
    done = len(lines)
    train(timed, out)
    assert len(metrics(out)) == done


def test_compiled_blocks_take_the_same_steps(tmp_path, recipe):
    if shutil.which("g++") is None:
        pytest.skip("compiling for the CPU needs a C++ compiler")
    plain = section(recipe, training={"steps": 2}, network={"depth": 1}, run={"previews": 0})
    train(plain, tmp_path / "plain")
    # In a process of its own: the type checker of the test run cannot be compiled.
    content = section(plain, run={"compile": True}).to_dict()
    (tmp_path / "compiled.yaml").write_text(json.dumps(content))
    words = ["--config", str(tmp_path / "compiled.yaml"), "--out", str(tmp_path / "compiled")]
    run = [sys.executable, "-m", "partita", "train", *words]
    subprocess.run(run, check=True, capture_output=True, timeout=300)
    for name, tensor in weights(tmp_path / "plain").items():
        torch.testing.assert_close(
            weights(tmp_path / "compiled")[name], tensor, rtol=1e-4, atol=1e-4
        )


def test_every_section_survives_its_dictionary():
    recipe = Recipe(
        tokenizer=TokenizerOptions(name="bpe", vocab_size=300),
        method=MethodOptions(name="md4", schedule="polynomial", schedule_options={"exponent": 2.0}),
        training=TrainingOptions(seconds=3.0, lr_schedule="wsd"),
    )
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert set(recipe.to_dict()) == {field.name for field in dataclasses.fields(Recipe)}


def test_default_folders_are_named_after_the_text_and_the_method():
    for path, name in {
        "notes.txt": "notes-mdlm",
        "some/where/wiki.txt.xz": "wiki-mdlm",
        "corpus/": "corpus-mdlm",
        "hf:owner/name?split=train": "name-mdlm",
    }.items():
        assert default_folder(Recipe(data=DataOptions(path=path))).name == name
