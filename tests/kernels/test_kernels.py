"""Kernels against their plain twins, on a GPU or, where there is none, in Triton's interpreter.

The interpreter takes milliseconds for what a GPU does in none, so blocks and batches are small.
"""

from __future__ import annotations

import os
import sys
from dataclasses import astuple
from importlib import import_module

import pytest
import torch

from partita.categorical import Decoding, sample_categorical
from partita.contracts.layouts import PackedLayout
from partita.execution.choice import sample
from partita.execution.program import Program
from partita.kernels import cross_entropy
from partita.kernels.cross_entropy import weighted_nats
from partita.methods import METHODS
from partita.networks.attention import _attend_on_cpu
from partita.networks.options import TransformerOptions
from partita.randomness import Noise, Purpose

if sys.platform != "linux":
    pytest.importorskip("triton", reason="there is no Triton but on Linux")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

attention = import_module("partita.kernels.attention")
draws = import_module("partita.kernels.draws")
scores = import_module("partita.kernels.scores")
uniforms_of = import_module("partita.kernels.uniforms")
draw_tokens, score_rows, on_cpu = draws.draw_tokens, scores.score_rows, cross_entropy._scored
DEVICE = "cpu" if INTERPRETED else "cuda"
BLOCK = 32
SIZES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3)
ALMOST_ONE = 1 - 2.0**-53  # the largest uniform there is

DECODINGS = {
    "plain": Decoding(),
    "greedy": Decoding(0.0),
    "cool": Decoding(0.7),
    "hot": Decoding(3.0),
    "top_k": Decoding(top_k=3),
    "top_k 1": Decoding(top_k=1),
    "top_k of all": Decoding(top_k=99),
    "top_p": Decoding(top_p=0.6),
    "top_p 1": Decoding(top_p=1.0),
    "all": Decoding(0.8, 5, 0.7),
}
every_decoding = pytest.mark.parametrize("name", DECODINGS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(draws, "BLOCK", BLOCK)
    monkeypatch.setattr(scores, "BLOCK", BLOCK)


def random(*shape, seed=0, draw=torch.randn, **options):
    return draw(*shape, generator=torch.Generator().manual_seed(seed), **options).to(DEVICE)


def uniforms(count, seed=1):
    """Both ends, and what lies between."""
    u = random(count, seed=seed, draw=torch.rand, dtype=torch.float64)
    u[0], u[-1] = 0.0, ALMOST_ONE
    return u


def assert_drawn(logits, u, decoding=DECODINGS["plain"], forbidden=-1):
    """The tokens of the plain twin, which knows a forbidden one as an impossible one."""
    tokens, broken = draw_tokens(logits, u, *astuple(decoding), forbidden=forbidden)
    assert not broken.any()
    possible = logits.float().clone()
    if 0 <= forbidden < logits.shape[1]:
        possible[:, forbidden] = -torch.inf
    assert torch.equal(tokens, sample_categorical(possible, u, decoding))
    return tokens


# Tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_vocabularies_around_the_block(size):
    assert_drawn(random(8, size), uniforms(8))


@every_decoding
def test_decoding(name):
    assert_drawn(3 * random(4, BLOCK + 5), uniforms(4), DECODINGS[name])


@every_decoding
def test_ties(name):
    """Few values, each many times: all that tie with the last that is kept are kept."""
    logits = random(3, 9, draw=lambda *s, generator: torch.randint(3, s, generator=generator))
    assert_drawn(logits.float(), uniforms(3), DECODINGS[name])


@every_decoding
def test_impossible_tokens(name):
    """A whole block of them, the first token and the last."""
    logits = random(4, BLOCK + 5)
    logits[0, :BLOCK] = -torch.inf
    logits[1, 1:] = -torch.inf
    logits[2, :-1] = -torch.inf
    logits[3, ::2] = -torch.inf
    tokens = assert_drawn(logits, uniforms(4), DECODINGS[name])
    assert logits.gather(1, tokens[:, None]).isfinite().all()


@pytest.mark.parametrize("name", ["plain", "greedy", "all"])
@pytest.mark.parametrize("forbidden", [0, 7, BLOCK])
def test_the_forbidden_id_is_never_drawn(name, forbidden):
    """Not even where it has nearly all of the mass, or no number at all."""
    logits = random(3, BLOCK + 1)
    logits[:, forbidden] = torch.tensor([20.0, torch.nan, torch.inf])
    tokens = assert_drawn(logits, uniforms(3), DECODINGS[name], forbidden)
    assert not tokens.eq(forbidden).any()


def test_a_forbidden_id_beyond_the_outputs():
    logits, u = random(3, 5), uniforms(3)
    assert torch.equal(assert_drawn(logits, u, forbidden=5), assert_drawn(logits, u))


def test_cumulative_probabilities_that_are_met_exactly():
    u = torch.tensor([0.0, 0.25, 0.5, 0.75, ALMOST_ONE], dtype=torch.float64, device=DEVICE)
    assert assert_drawn(torch.zeros(5, 4, device=DEVICE), u).tolist() == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    assert_drawn(random(4, BLOCK + 5).to(dtype), uniforms(4))


def test_rows_that_lie_apart():
    wide = random(4, BLOCK + 9)
    assert_drawn(wide[:, : BLOCK + 2], uniforms(4))


@pytest.mark.parametrize("name", ["plain", "greedy", "all"])
def test_broken_rows_are_flagged_and_others_are_not(name):
    logits, u = random(6, BLOCK + 1), uniforms(6)
    logits[0, 3], logits[1, BLOCK], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 1:] = -torch.inf  # what is left is forbidden
    tokens, broken = draw_tokens(logits, u, *astuple(DECODINGS[name]), forbidden=0)
    assert broken.tolist() == [True] * 4 + [False] * 2
    assert bool(((tokens >= 0) & (tokens <= BLOCK)).all())  # what follows may still index by them
    fine = logits[4:].index_fill(1, torch.tensor([0], device=DEVICE), -torch.inf)
    assert torch.equal(tokens[4:], sample_categorical(fine, u[4:], DECODINGS[name]))


def test_no_rows():
    tokens, broken = draw_tokens(random(0, 5), uniforms(2)[:0])
    assert tokens.shape == broken.shape == (0,)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU, programs draw by the kernel anyway")
@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_a_program_that_draws_by_the_kernel(name, monkeypatch):
    sizes = TransformerOptions(length=4, width=8, depth=2, heads=2)
    model = METHODS[name].build(sizes, 5)
    for index, parameter in enumerate(model.parameters()):
        parameter.data = 0.5 * random(*parameter.shape, seed=index)
    plain = sample(model, 2, steps=2, speed="eager")

    def by_kernel(self, logits, u):
        return draw_tokens(logits, u, *astuple(self.decoding), forbidden=self.forbidden)

    monkeypatch.setattr(Program, "_draw", by_kernel)
    assert torch.equal(sample(model, 2, steps=2, speed="cudagraph"), plain)


# Uniforms ----------------------------------------------------------------------------------------

ADDRESSES = {
    "the first": (0, 0, Purpose.ORDER, 0),
    "a usual one": (17, 3, Purpose.MASK, 1),
    "the largest": (2**64 - 1, 2**32 - 1, Purpose.LABEL, 2**24 - 1),
    "more steps than 32 bits count": (5, 2**40 + 9, Purpose.TIME, 2),
}


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("count", [1, BLOCK, 2 * BLOCK + 3])
def test_uniforms_of_addresses(name, count, monkeypatch):
    """Bit by bit those of torch."""
    monkeypatch.setattr(uniforms_of, "BLOCK", BLOCK)
    seed, step, purpose, stream = ADDRESSES[name]
    positions = torch.arange(count)[None] + 2**31 - 2
    samples = torch.tensor([0, 3, 2**32 - 1, 2**33 + 1])
    plain = Noise(seed, samples, stream).uniform(purpose, step, positions)
    places = positions.expand(4, -1).to(DEVICE), samples[:, None].expand(-1, count).to(DEVICE)
    word = (int(purpose) << 24) | stream
    key = seed & 0xFFFFFFFF, seed >> 32
    found = uniforms_of.philox_uniforms(*places, step & 0xFFFFFFFF, word, key)
    assert torch.equal(found.cpu(), plain)
    since = torch.tensor(step - 7, device=DEVICE)
    assert torch.equal(uniforms_of.philox_uniforms(*places, 7, word, key, since), found)


def test_no_uniforms():
    nothing = torch.zeros(0, 3, dtype=torch.int64, device=DEVICE)
    assert uniforms_of.philox_uniforms(nothing, nothing, 0, 0, (0, 0)).shape == (0, 3)


# Attention ---------------------------------------------------------------------------------------

LENGTHS = {
    "few": ([3, 1, 9], [5, 2, 200]),
    "many": ([70, 2, 64], [130, 1, 65]),
    "one": ([1], [1]),
    "nothing to read": ([4, 3, 2], [0, 6, 0]),
    "nobody reads": ([0, 5, 0], [3, 6, 7]),
}


def offsets_of(lengths):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("width", [16, 64])
def test_attention_inside_segments(lengths, width):
    """Keys and values are views of one tensor, and slots after the last segment hold nonsense."""
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    queries, keys = LENGTHS[lengths]
    query = random(sum(queries) + 3, 2, width).to(dtype)
    both = random(sum(keys) + 2, 2, 2, width, seed=1).to(dtype)
    query[sum(queries) :], both[sum(keys) :] = torch.nan, torch.nan
    key, value = both.unbind(1)
    assert attention.fits(query, key, value)
    layout = PackedLayout(offsets_of(queries), offsets_of(keys), max(queries), max(keys))
    given = layout.cu_seqlens_q, layout.cu_seqlens_k
    ours = attention.attend_packed(query, key, value, *given, max(queries) + 5)
    real = (x[: sum(n)].double().cpu() for x, n in ((query, queries), (key, keys), (value, keys)))
    theirs = _attend_on_cpu(*real, layout.to("cpu"))
    near = 1e-5 if INTERPRETED else 2e-2
    torch.testing.assert_close(ours[: sum(queries)].double().cpu(), theirs, rtol=near, atol=near)


@pytest.mark.skipif(INTERPRETED, reason="takes minutes there")
def test_more_segments_than_a_short_axis_of_a_grid_has_places():
    count = 70_000
    value = random(count, 1, 16).bfloat16()
    alone = torch.arange(count + 1, device=DEVICE, dtype=torch.int32)
    assert torch.equal(attention.attend_packed(value, value, value, alone, alone, 1), value)


def test_heads_that_the_kernel_cannot_read():
    query = random(4, 2, 24)
    assert not attention.fits(query, query, query)
    apart = random(4, 16, 2).transpose(1, 2)
    assert not attention.fits(apart, apart, apart)


# Scores ------------------------------------------------------------------------------------------


def plain_scores(logits, *rest):
    """What CPUs compute."""
    told = (x.cpu() if isinstance(x, torch.Tensor) else x for x in rest)
    nats, slope = on_cpu(logits.cpu().clone(), *told)
    return nats.to(DEVICE), None if slope is None else slope.to(DEVICE)


def assert_scored(logits, targets, forbidden=-1, narrow=torch.float32):
    weights = random(len(logits), seed=5)
    weights[0] = 0.0
    given = logits, logits.shape[1], targets, weights, forbidden, narrow
    ours, theirs = score_rows(*given, True), plain_scores(*given, True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ours[1].dtype == narrow
    without, nothing = score_rows(*given, False)
    assert nothing is None
    assert torch.equal(without, ours[0])
    return ours


def targets_of(count, size):
    """The first token, the last one, and others."""
    targets = torch.arange(count, device=DEVICE) * 7 % size
    targets[-1] = size - 1
    return targets


@pytest.mark.parametrize("size", SIZES)
def test_scores_around_the_block(size):
    assert_scored(3 * random(5, size), targets_of(5, size))


@pytest.mark.parametrize("forbidden", [0, 9, BLOCK, 2 * BLOCK])
def test_the_forbidden_id_has_no_mass_and_no_slope(forbidden):
    logits = random(5, 2 * BLOCK + 1)
    logits[:, forbidden] = 30.0
    targets = targets_of(5, 2 * BLOCK + 1)
    targets[targets == forbidden] += 1 if forbidden == 0 else -1
    _, slope = assert_scored(logits, targets, forbidden)
    assert not slope[:, forbidden].any()


def test_impossible_logits():
    """Among others, and a first block of nothing else."""
    logits, targets = random(3, 2 * BLOCK), torch.full((3,), BLOCK + 3, device=DEVICE)
    logits[0, ::2], logits[1, :BLOCK], logits[2, : BLOCK + 3] = 3 * [-torch.inf]
    _, slope = assert_scored(logits, targets)
    assert slope.isfinite().all()


def test_large_logits():
    assert_scored(1e4 * random(4, BLOCK + 3), targets_of(4, BLOCK + 3))


def test_a_target_that_cannot_be_is_infinitely_surprising():
    """Nor is memory read that belongs to another row."""
    logits = random(4, BLOCK)
    targets = torch.tensor([3, BLOCK, -1, 4], device=DEVICE)
    nats, _ = score_rows(logits, BLOCK, targets, random(4), 3, torch.float32, True)
    assert nats.isinf().tolist() == [True, True, True, False]


def test_scores_in_low_precision_and_of_rows_that_lie_apart():
    wide = random(4, BLOCK + 9)
    assert_scored(wide[:, : BLOCK + 2], targets_of(4, BLOCK + 2))
    logits, targets, weights = random(4, BLOCK), targets_of(4, BLOCK), random(4, seed=5)
    _, exact = score_rows(logits, BLOCK, targets, weights, -1, torch.float32, True)
    _, slope = score_rows(logits, BLOCK, targets, weights, -1, torch.bfloat16, True)
    torch.testing.assert_close(slope, exact.bfloat16())


def test_columns_beyond_the_outputs():
    """They are there to make the number of columns even, whatever they hold."""
    size = BLOCK + 3
    logits, targets, weights = random(5, size + 8), targets_of(5, size), random(5, seed=5)
    logits[:, size:] = torch.tensor([50.0, torch.nan, torch.inf, -torch.inf, 0, 1, 2, 3])
    rest = targets, weights, 1, torch.float32, True
    nats, slope = score_rows(logits, size, *rest)
    assert not slope[:, size:].any()
    expected = score_rows(logits[:, :size].contiguous(), size, *rest)
    torch.testing.assert_close((nats, slope[:, :size]), expected, rtol=0, atol=0)


def test_no_rows_to_score():
    nats, slope = score_rows(
        random(0, 5), 5, targets_of(1, 5)[:0], random(0), -1, torch.float32, True
    )
    assert nats.shape == (0,)
    assert slope.shape == (0, 5)


def test_the_fused_loss_by_the_kernel(monkeypatch):
    count, size, width = 7, BLOCK + 3, 4
    targets, weights = targets_of(count, size), random(count, seed=4)
    monkeypatch.setattr(cross_entropy, "CHUNK_BYTES", 4 * 3 * size)
    outcomes = []
    for scored in (plain_scores, score_rows):
        monkeypatch.setattr(cross_entropy, "_scored", scored)
        hidden, head, bias = random(count, width), random(size, width, seed=1), random(size, seed=2)
        learning = [x.requires_grad_() for x in (hidden, head, bias)]
        total, nats = weighted_nats(*learning, targets, weights, forbidden=1)
        total.backward()
        outcomes.append([total.detach(), nats, *(x.grad for x in learning)])
    torch.testing.assert_close(*outcomes, rtol=1e-5, atol=1e-5)
