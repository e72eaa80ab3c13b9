"""Networks on grids: positions in two directions, learned ones, registers, and what is refused."""

from __future__ import annotations

import pytest
import torch

from partita.contracts.batch import Batch
from partita.contracts.layouts import DenseLayout, PackedLayout
from partita.errors import InputError
from partita.methods import AR, MDLM, PGM, EmbeddingDDPM, FlexMDM
from partita.networks import (
    PartitionTransformer,
    Transformer,
    TransformerConfig,
    TransformerOptions,
)
from partita.networks.layers import Rotary
from partita.randomness import Noise

SIZES = {"length": 12, "width": 16, "depth": 2, "heads": 2}
LEARNED = {"positions": "learned"}
KINDS = [
    {"grid": 4},
    {"registers": 2},
    {"grid": 4, "registers": 2},
    {"options": LEARNED},
    {"options": LEARNED, "registers": 1, "qk_norm_over": "width"},
    {"qk_scale": 1.0},
]
every_kind = pytest.mark.parametrize("options", KINDS, ids=str)


def build(**options):
    """A network in which no parameter is zero."""
    network = Transformer(TransformerConfig(vocab_size=11, classes=3, **SIZES, **options))
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network.eval()


def test_rotary_attention_sees_differences_of_rows_and_of_columns():
    """Products of turned vectors depend on both, and on nothing else."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 8)
    rotary = Rotary.at(torch.arange(20), 8, 100.0, columns=5)
    turned = [rotary.rotate(x.expand(20, 1, 8))[:, 0] for x in (query, key)]
    products = (turned[0] @ turned[1].T).view(4, 5, 4, 5)
    torch.testing.assert_close(products[:3, :4, :3, :4], products[1:, 1:, 1:, 1:])
    flat = products[0, 0].flatten()
    assert len({round(float(x), 4) for x in flat}) == len(flat)


def test_a_grid_of_one_column_has_only_rows():
    positions = torch.arange(6)
    grid, line = Rotary.at(positions, 8, 100.0, columns=1), Rotary.at(positions, 4, 100.0)
    assert torch.equal(grid.cos[..., :2], line.cos)
    assert torch.equal(grid.sin[..., 2:], torch.zeros(6, 1, 2))


@every_kind
def test_documents_are_read_as_if_they_were_alone(options):
    """Packed, or sharing the rows of a batch; every one has registers of its own."""
    network, lengths = build(**options), [5, 7, 12]
    texts = [
        torch.randint(0, 11, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths
    ]
    alone = torch.cat([network(text[None], label=torch.tensor([1]))[0] for text in texts])
    packed = PackedLayout.of_lengths(torch.tensor(lengths))
    told = network(torch.cat(texts), layout=packed, label=torch.ones(3, dtype=torch.long))
    torch.testing.assert_close(told, alone, atol=1e-5, rtol=1e-5)
    ends = torch.zeros(2, 12, dtype=torch.bool)
    ends[0, 4] = True
    rows = torch.cat(texts).view(2, 12)
    told = network(rows, layout=PackedLayout.of_documents(ends), label=torch.tensor([1, 1]))
    torch.testing.assert_close(told.flatten(0, 1), alone, atol=1e-5, rtol=1e-5)


@every_kind
def test_every_option_matters_and_learns(options):
    network, tokens = build(**options), torch.arange(10).view(1, 10)
    assert not torch.allclose(network(tokens), build()(tokens))
    network(tokens, label=torch.tensor([2]))[..., 0].sum().backward()
    silent = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
    network.zero_grad()
    network.recompute = True
    network.train()
    network(tokens, label=torch.tensor([2]))[..., 0].sum().backward()
    assert [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_registers_have_no_place():
    """Their order does not matter, and they are not among the answers."""
    network, tokens = build(registers=2), torch.arange(10).view(2, 5)
    before = network(tokens)
    assert before.shape == (2, 5, 11)
    with torch.no_grad():
        network.registers.copy_(network.registers.flip(0))
    torch.testing.assert_close(network(tokens), before)


def test_what_is_not_chosen_leaves_no_trace():
    for kind in (Transformer, PartitionTransformer):
        names = kind(TransformerConfig(vocab_size=11, **SIZES)).state_dict()
        assert not [name for name in names if "registers" in name or "places" in name]


REFUSED = [
    ({"grid": 5}, "network.grid: length 12 is no whole number of rows of 5"),
    ({"grid": -1}, "network.grid"),
    ({"registers": -1}, "network.registers"),
    ({"grid": 4, "heads": 8}, "must be a multiple of 4 times heads 8 on a grid"),
    ({"qk_norm_over": "depth"}, "unknown name 'depth'"),
    ({"qk_scale": 0.0}, "network.qk_scale: must be a positive"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_sizes_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message):
        TransformerOptions(**(SIZES | options))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (AR, {"grid": 4}),
        (AR, {"registers": 1}),
        (FlexMDM, {"grid": 4}),
        (EmbeddingDDPM, {"grid": 4}),
        (EmbeddingDDPM, {"registers": 1}),
    ],
)
def test_networks_that_cannot_have_them(method, options):
    (name,) = options
    with pytest.raises(InputError, match=f"network.{name}: is .*, but"):
        method.build(TransformerOptions(**SIZES, **options), 8)


@pytest.mark.parametrize("method", [AR, FlexMDM, PGM])
def test_positions_are_learned_by_a_transformer_alone(method):
    with pytest.raises(InputError, match=r"network.options.positions: \w+ has no such choice"):
        method.build(TransformerOptions(**SIZES, options=LEARNED), 8)


def test_a_way_to_tell_positions_that_there_is_not():
    with pytest.raises(InputError, match=r"network.options.positions: unknown name 'sines'"):
        MDLM.build(TransformerOptions(**SIZES, options={"positions": "sines"}), 8)


def test_a_mask_says_nothing_of_registers():
    tokens = torch.arange(10).view(2, 5)
    with pytest.raises(InputError, match="does not say what the network's registers may read"):
        build(registers=1)(tokens, layout=DenseLayout(torch.ones(1, 5, 5, dtype=torch.bool)))


@pytest.mark.parametrize("method", [MDLM, PGM])
def test_methods_learn_on_a_grid_with_registers(method):
    torch.manual_seed(0)
    options = TransformerOptions(**SIZES, grid=4, registers=2, classes=3)
    built = method.build(options, 8)
    tokens = torch.randint(0, 8, (4, 12))
    optimiser, losses = torch.optim.Adam(built.parameters(), 1e-2), []
    for step in range(40):
        loss = built.loss(
            Batch.of(tokens, label=torch.arange(4)), Noise.for_batch(0, 4), step
        ).objective
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
