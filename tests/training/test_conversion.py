"""Models of one method out of trained models of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import partita
from partita.commands import main
from partita.contracts.layouts import DENSE
from partita.networks.layers import Rotary
from partita.training.conversion import SOURCES, converted

NETWORK = ["--network.width", "32", "--network.depth", "4", "--network.heads", "2"]
FLAGS = ["--tokenizer.name", "characters", "--network.length", "16", *NETWORK]
FLAGS += ["--training.steps", "3", "--training.batch_size", "4", "--run.previews", "0"]
PAIRS = [(new, old) for new, olds in SOURCES.items() for old in olds if new != "flexmdm"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a short text, and a model of it for each method to start from."""
    folder = tmp_path_factory.mktemp("conversion")
    (folder / "text.txt").write_text("the cat sat on the mat, the dog ran to the door. " * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in sorted({old for _, old in PAIRS}):
            assert main(["train", "text.txt", *FLAGS, "--method.name", name, "--out", name]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize(("new", "old"), PAIRS)
def test_training_goes_on_from_another_method_s_weights(new, old):
    out = f"{new}-from-{old}"
    words = ["train", "text.txt", "--from", old, "--method.name", new, "--out", out]
    assert main([*words, "--training.steps", "2", "--run.previews", "0"]) == 0
    model, base = partita.load(out), partita.load(old)
    assert model.recipe.method.name == new
    assert model.tokenizer.describe() == base.tokenizer.describe()
    assert model.provenance["started_from"]["path"] == old
    start = dict(converted(model.recipe, base).named_parameters())
    assert all(torch.isfinite(x).all() for x in model.method.parameters())
    moved = [
        float((x - start[name]).detach().abs().max()) for name, x in model.method.named_parameters()
    ]
    assert 0 < max(moved) < 0.1  # two steps at the beginning of a warm-up


@pytest.mark.parametrize("new", ["mdlm", "mdlm-complementary"])
def test_methods_of_the_same_network_take_all_of_it(new):
    for old in SOURCES[new]:
        model = partita.load(old)
        recipe = replace(model.recipe, method=replace(model.recipe.method, name=new))
        made, given = converted(recipe, model).state_dict(), model.method.state_dict()
        assert made.keys() == given.keys()
        assert all(torch.equal(made[name], given[name]) for name in made)


def test_a_decoder_s_blocks_compute_what_the_blocks_did():
    """Where a stream reads itself, attention across is attention inside."""
    model = partita.load("mdlm")
    recipe = replace(model.recipe, method=replace(model.recipe.method, name="pgm"))
    made, blocks = converted(recipe, model).network, model.method.network.blocks
    torch.manual_seed(0)
    x = torch.randn(2, 9, 32)
    rotary = Rotary.at(torch.arange(9), 16, 10000.0)
    depth = len(made.encoder)
    assert (depth, len(made.decoder)) == (2, 2)
    for block, old in zip(made.encoder, blocks[:depth], strict=True):
        assert torch.equal(block(x, rotary, DENSE, None), old(x, rotary, DENSE, None))
    for block, old in zip(made.decoder, blocks[depth:], strict=True):
        across = block(x, x, rotary, rotary, DENSE, None)
        torch.testing.assert_close(across, old(x, rotary, DENSE, None), atol=1e-5, rtol=1e-5)


def test_decoders_of_another_width_are_new():
    words = ["train", "text.txt", "--from", "mdlm", "--method.name", "pgm", "--out", "narrow"]
    narrow = ["--network.options.decoder_width", "16", "--network.options.decoder_depth", "1"]
    assert main([*words, *narrow, "--training.steps", "1", "--run.previews", "0"]) == 0
    assert len(partita.load("narrow").method.network.encoder) == 3


def test_what_cannot_be_taken_over_is_refused(here, capsys):
    words = ["train", "text.txt", "--from", "ar", "--method.name", "md4", "--out", "never"]
    assert main(words) == 2
    assert "method.name" in capsys.readouterr().err
    words = ["train", "text.txt", "--from", "ar", "--method.name", "mdlm", "--out", "never"]
    assert main([*words, "--network.width", "64"]) == 2
    assert "network.width" in capsys.readouterr().err
    assert not (here / "never").exists()
