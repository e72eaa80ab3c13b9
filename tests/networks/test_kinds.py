"""Kinds of network: a registry, with options of their own, that somebody else can add to."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch

import partita
from partita.commands import main
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe
from partita.errors import InputError
from partita.methods import METHODS, PGM
from partita.networks import NETWORKS, KindOptions, TransformerConfig, TransformerOptions
from partita.networks.kinds import new_network, options_for, plain_network
from partita.networks.old_names import MOVED
from partita.randomness import Noise
from tests.support.second_partition import Twice, TwiceOptions

SIZES = {"length": 6, "width": 16, "depth": 2, "heads": 2}


def twice(**options):
    return TransformerOptions(**SIZES, kind="twice", options=options)


# A second partition network ----------------------------------------------------------------------


def test_the_other_group_alone_is_read():
    torch.manual_seed(0)
    method = PGM.build(twice(), 5).eval()
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(5, (2, 6))
    groups = torch.tensor([[True, False, True, False, False, True]]).expand_as(tokens)
    other = torch.where(groups, (tokens + 1) % 5, tokens)
    ours, theirs = (method.network.both(x, groups)[0].view(2, 6, 5) for x in (tokens, other))
    assert torch.equal(ours[groups], theirs[groups])
    assert not torch.isclose(ours[~groups], theirs[~groups]).all(-1).any()
    assert torch.isfinite(method.loss(partita.Batch.of(tokens), Noise.for_batch(0, 2), 0).objective)


def test_it_is_trained_sampled_and_saved_like_the_first_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = " ".join(random.Random(0).choices(["cat", "dog", "sat", "ran"], k=400))
    (tmp_path / "notes.txt").write_text(text)
    sizes = "--network.length 8 --network.width 8 --network.depth 1 --network.heads 1"
    words = f"train notes.txt --method.name pgm --network.kind twice --out run {sizes} "
    words += "--network.options.softness 2 --training.steps 4 --training.batch_size 4"
    assert main(words.split()) == 0
    assert main(words.split()) == 0
    assert "nothing was left to do" in capsys.readouterr().out
    model = partita.load("run", device="cpu")
    assert isinstance(model.method.network, Twice)
    assert model.method.network.options == TwiceOptions(softness=2)
    assert main(["sample", "run", "--count", "2", "--steps", "3"]) == 0
    capsys.readouterr()
    assert main(["methods", "pgm", "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["methods"]["pgm"]["networks"]
    assert kinds["twice"] == {"softness": "What its logits are divided by."}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softness": 0.0}, r"network\.options\.softness: must be a positive"),
        ({"softness": "much"}, r"network\.options\.softness: must be a number, got 'much'"),
        ({"soft": 1.0}, r"network\.options\.soft: twice has no such .*did you mean softness\? it"),
        ({"queries": "mean"}, r"twice has no such choice; it takes: softness"),
    ],
)
def test_its_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        PGM.build(twice(**options), 5)


def test_methods_that_read_tokens_do_not_take_it():
    with pytest.raises(InputError, match=r"'twice' reads groups.*these fit: transformer, unet, pa"):
        MethodOptions("mdlm").build(twice(), 5)


# The registry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_a_usual_kind(name):
    reads = METHODS[name].reads
    usual = NETWORKS.that_read(reads)[0]
    method = MethodOptions(name).build(TransformerOptions(**SIZES), 5)
    assert isinstance(method.network, NETWORKS[usual].network)
    assert type(options_for(TransformerOptions(**SIZES), reads)) is NETWORKS[usual].options


def test_what_nobody_reads_is_no_kind():
    with pytest.raises(InputError, match="reads: unknown name 'dreams'; known: tokens, groups"):
        NETWORKS.register("dreamer", reads="dreams")


def test_sizes_that_are_no_network_s_go_to_its_class():
    network = new_network(
        TransformerOptions(**SIZES), "vectors", vocab_size=5, time=True, dimensions=3
    )
    assert network.dimensions == 3


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"kind": "transformer"}, {}),
        ({"options": {"positions": "rotary", "logistics": 5}}, {}),
        ({"options": {"positions": "learned"}}, {"options": {"positions": "learned"}}),
        ({"kind": "unet", "options": {"channels": 1}}, {"kind": "unet"}),
    ],
)
def test_recipes_of_runs_say_a_thing_in_one_way(given, plain):
    network, expected = (TransformerOptions(**SIZES, **x) for x in (given, plain))
    assert plain_network(network, "tokens") == expected
    recipe = replace(Recipe(), network=network).resolved()
    assert recipe.network == expected
    assert recipe.resolved() == recipe


# Old names ---------------------------------------------------------------------------------------


def test_old_keywords_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"patch: write options=\{'patch': 4\}"):
        assert TransformerOptions(patch=4) == TransformerOptions(options={"patch": 4})
    with pytest.warns(DeprecationWarning, match="levels_head"):
        config = TransformerConfig(vocab_size=5, levels_head="logistic", options={"logistics": 3})
    assert config.options == {"levels_head": "logistic", "logistics": 3}
    with pytest.warns(DeprecationWarning, match="decoder_depth"):
        decoder = partita.DecoderOptions(depth=1, queries="mean")
    with pytest.warns(DeprecationWarning, match="decoder: write"):
        options = TransformerOptions(**SIZES, decoder=decoder)
    assert options.options == {"decoder_depth": 1, "queries": "mean"}
    assert len(PGM.build(options, 5).network.decoder) == 1


def test_all_that_has_another_name_is_an_option_of_some_kind():
    known = {name for kind in NETWORKS for name in vars(NETWORKS[kind].options())}
    assert known - {"softness"} == set(MOVED.values())
    assert all(issubclass(NETWORKS[kind].options, KindOptions) for kind in NETWORKS)
