"""Block diffusion in a file of its own: a method that wants a cache, a mask of blocks and a noise
level for each position, and finds them. By enumeration it is what it should be."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

import partita
from partita.contracts.layouts import DenseLayout, PackedLayout, Queries
from partita.errors import InputError
from partita.methods import MDLM
from partita.networks import Transformer, TransformerConfig, TransformerOptions
from partita.processes.corruption import Continuous
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.state import SamplerState
from partita.schedules import make_schedule
from tests.support import block_diffusion
from tests.support.block_diffusion import BlockDiffusion, Hidden, block_by_block

VOCAB, LENGTH = 2, 4
MASK = VOCAB
EXACT = {"atol": 1e-10, "rtol": 1e-9}
TEXTS = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
every_length = pytest.mark.parametrize("block_length", [1, 2, 3, LENGTH])
told_or_not = pytest.mark.parametrize("levels", [False, True])


@lru_cache
def build(block_length, levels=False, **options):
    """A model in which every parameter is random, in float64."""
    sizes = {"length": LENGTH, "width": 8, "depth": 2, "heads": 2} | options
    model = BlockDiffusion.build(
        TransformerOptions(**sizes), VOCAB, block_length=block_length, levels=levels
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return model.double().eval()


def log_prob(model, texts, hidden):
    """log p(x_l | what is not hidden of its block, all blocks before) at every hidden token."""
    everything = torch.ones_like(hidden)
    return -model.loss_given(partita.Batch.of(texts), Hidden(hidden, everything)).cross_entropy


def starts(block_length):
    return range(0, LENGTH, block_length)


def orders_of_blocks(block_length):
    """All ways to reveal each block in some order, the blocks from left to right."""
    blocks = [range(low, min(low + block_length, LENGTH)) for low in starts(block_length)]
    for parts in itertools.product(*(itertools.permutations(block) for block in blocks)):
        yield [position for part in parts for position in part]


@torch.no_grad()
def log_likelihoods(model, order):
    """log p of all texts if positions are revealed one by one in this order."""
    total = torch.zeros(len(TEXTS), dtype=torch.float64)
    hidden = torch.ones_like(TEXTS, dtype=torch.bool)
    for position in order:
        total += log_prob(model, TEXTS, hidden)[:, position]
        hidden[:, position] = False
    return total


# The loss ----------------------------------------------------------------------------------------


def test_one_block_is_masked_diffusion():
    """The loss of MDLM, from the same numbers, token by token."""
    model, noise = build(LENGTH), Noise.for_batch(3, len(TEXTS))
    mdlm = MDLM(model.network, schedule="linear")
    for step in range(3):
        ours = model.loss(partita.Batch.of(TEXTS), noise, step)
        drawn = Continuous(make_schedule("linear")).draw(
            torch.ones_like(TEXTS, dtype=torch.bool), noise, step, len(TEXTS)
        )
        theirs = mdlm.loss_given(partita.Batch.of(TEXTS), drawn)
        assert torch.equal(ours.counted, drawn.masked)
        torch.testing.assert_close(ours.per_token, theirs.per_token, **EXACT)


@told_or_not
def test_blocks_of_one_token_are_autoregression(levels):
    """Hidden tokens of weight 1/t count 1 on average: the chain rule, which sums to one."""
    model = build(1, levels)
    nats = -log_prob(model, TEXTS, torch.ones_like(TEXTS, dtype=torch.bool)).detach()
    assert float(torch.exp(-nats.sum(-1)).sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(-nats.sum(-1), log_likelihoods(model, range(LENGTH)), **EXACT)
    for position in range(LENGTH):  # what comes later is not read
        later = TEXTS.clone()
        later[:, position + 1 :] = 1 - later[:, position + 1 :]
        again = -log_prob(model, later, torch.ones_like(TEXTS, dtype=torch.bool))
        assert torch.equal(again[:, : position + 1], nats[:, : position + 1])


@every_length
def test_the_bound_is_its_integral(block_length):
    """Of each block: all sets of hidden tokens, and the mean over all orders inside of blocks."""
    model = build(block_length)
    exact = torch.zeros(len(TEXTS), dtype=torch.float64)
    for low in starts(block_length):
        size = min(block_length, LENGTH - low)
        for number in range(1, 2**size):
            chosen = torch.tensor([bool(number >> k & 1) for k in range(size)])
            hidden = torch.zeros_like(TEXTS, dtype=torch.bool)
            hidden[:, low : low + size] = chosen
            count = int(chosen.sum())  # the integral of t^(count - 1) (1 - t)^(size - count)
            weight = 1 / (count * math.comb(size, count))
            with torch.no_grad():
                exact -= weight * log_prob(model, TEXTS, hidden).sum(-1)
    orders = [log_likelihoods(model, order) for order in orders_of_blocks(block_length)]
    torch.testing.assert_close(exact, -torch.stack(orders).mean(0), **EXACT)
    estimate = partita.nelbo(model, TEXTS, replicates=200)
    assert abs(estimate.nats - float(exact.mean()) / LENGTH) < 4 * estimate.nats_error
    # A text's probability is that of its orders together: the bound lies above it.
    assert (exact >= -torch.stack(orders).logsumexp(0) + math.log(len(orders)) - 1e-9).all()


# The cache ---------------------------------------------------------------------------------------


@every_length
@told_or_not
def test_a_cache_gives_what_one_pass_gives(block_length, levels):
    model = build(block_length, levels, classes=3)
    label = torch.arange(len(TEXTS)) % 4
    hidden = torch.rand(TEXTS.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    queries = Queries(*hidden.nonzero(as_tuple=True))
    with torch.no_grad():
        together = model.log_probs(TEXTS, hidden, queries, label)
        caches = model.network.new_caches(len(TEXTS))
        for low in starts(block_length):
            part = slice(low, low + block_length)
            rows, inside = hidden[:, part].nonzero(as_tuple=True)
            arguments = TEXTS[:, part], hidden[:, part], rows, inside, caches, label
            alone = model.within(*arguments)
            assert torch.equal(model.within(*arguments), alone)  # what was read is forgotten
            mine = (queries.positions >= low) & (queries.positions < low + block_length)
            torch.testing.assert_close(together[mine], alone, **EXACT)
            model.finish(TEXTS[:, part], caches, label)
    assert caches[0].filled == LENGTH


@every_length
def test_what_is_written_has_the_models_law(block_length):
    """One token at a time, in a random order inside of each block."""
    model, count = build(block_length), 20_000
    orders = [log_likelihoods(model, order) for order in orders_of_blocks(block_length)]
    law = torch.stack(orders).exp().mean(0)
    assert float(law.sum()) == pytest.approx(1, abs=1e-9)
    context = SamplingContext(model, Noise.for_batch(0, count))
    drawn = block_by_block(context, SamplerState.blank(count, LENGTH, MASK))
    numbers = (drawn * torch.tensor([8, 4, 2, 1])).sum(-1)
    expected = count * law
    chi_square = float(((numbers.bincount(minlength=16) - expected) ** 2 / expected).sum())
    assert chi_square < 37.7  # which 15 degrees of freedom pass once in a thousand times


def test_fewer_steps_reveal_more_at_once():
    model, asked = build(2), []
    context = SamplingContext(
        model, Noise.for_batch(0, 3), callback=lambda step: asked.append(step)
    )
    block_by_block(context, SamplerState.blank(3, LENGTH, MASK), steps=1)
    assert [len(step.rows) for step in asked] == [6, 6]


# What networks take ------------------------------------------------------------------------------


def network(**options):
    config = TransformerConfig(vocab_size=5, length=8, width=8, depth=2, heads=2, **options)
    made = Transformer(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return made.double().eval()


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("classes", [0, 3])
def test_a_time_for_each_token_is_that_of_rows_where_all_are_alike(registers, classes):
    made = network(time=True, registers=registers, classes=classes)
    tokens = torch.arange(16).view(2, 8) % 5
    told = {"label": torch.tensor([0, 2]) if classes else None}
    time = torch.tensor([0.25, 0.75], dtype=torch.float64)
    every = time[:, None].expand(2, 8)
    queries = Queries(torch.tensor([1, 0, 1]), torch.tensor([3, 7, 0]))
    ends = torch.arange(8).expand(2, 8) % 3 == 2
    for layout in (DenseLayout(), PackedLayout.of_documents(ends)):
        rows = made(tokens, scalar=time, layout=layout, **told)
        torch.testing.assert_close(made(tokens, scalar=every, layout=layout, **told), rows)
        some = made(tokens, scalar=every, layout=layout, queries=queries, **told)
        torch.testing.assert_close(some, rows[queries])
        other = every.clone()
        other[0, 4] = 0.5
        changed = made(tokens, scalar=other, layout=layout, **told)
        assert not torch.allclose(changed[0, 4], rows[0, 4])
        torch.testing.assert_close(changed[1], rows[1])


def test_positions_say_where_tokens_stand():
    made, tokens = network(options={"positions": "learned"}), torch.arange(8)[None] % 5
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    torch.testing.assert_close(made(tokens[:, order], positions=order), made(tokens)[:, order])


@pytest.mark.parametrize(
    ("options", "tokens", "told", "argument"),
    [
        ({"registers": 1}, (2, 4), {}, "network.registers"),
        ({}, (2, 9), {}, "length"),
        ({}, (2, 4), {"layout": PackedLayout.of_lengths(torch.tensor([4, 4]))}, "layout"),
        ({"time": True}, (2, 4), {"scalar": torch.zeros(2, 3)}, "time"),
    ],
)
def test_what_has_no_cache_or_no_time_is_refused(options, tokens, told, argument):
    made = network(**options)
    with pytest.raises(InputError) as caught:
        made(torch.zeros(tokens, dtype=torch.long), caches=made.new_caches(2), **told)
    assert caught.value.argument == argument


# End to end --------------------------------------------------------------------------------------

SIZES = "--network.length 16 --network.width 16 --network.depth 1 --network.heads 2"
PACE = "--training.steps 3 --training.batch_size 4 --run.previews 0 --run.device cpu"
METHOD = "--method.name block-diffusion --method.options.block_length 4"


def run(folder, words):
    command = [sys.executable, str(Path(block_diffusion.__file__)), *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@told_or_not
def test_the_file_is_a_command_line(tmp_path, levels):
    (tmp_path / "notes.txt").write_text("the cat sat on the mat, the dog ran to the door. " * 40)
    told = f"{METHOD} --method.options.levels {str(levels).lower()}"
    run(tmp_path, f"train notes.txt --tokenizer.name characters {told} {SIZES} {PACE} --out run")
    drawn = run(tmp_path, "sample run --sampler block-by-block --options.steps 2 --count 2")
    assert drawn.strip()
    assert "bits" in run(tmp_path, "eval run notes.txt --samples 0")
