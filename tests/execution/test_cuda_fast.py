"""Captured programs, fused losses and kernels on a GPU: equal to the plain paths."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import astuple

import pytest
import torch

from partita.categorical import Decoding, sample_categorical, weights
from partita.contracts.batch import Batch
from partita.contracts.layouts import sequence_at
from partita.execution.choice import sample
from partita.kernels import KERNELS
from partita.kernels.cross_entropy import weighted_nats
from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from partita.randomness import Noise, Purpose
from partita.samplers import Prompt
from partita.samplers.base import SamplingContext
from tests.laws.tables import assert_law

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not KERNELS, reason="needs a CUDA device and Triton"
)

LENGTH, VOCAB = 48, 300
METHODS_WITH_PROGRAMS = ["mdlm", "md4", "pgm", "maskgit"]
ROUNDING = 2e-6  # of cumulative probabilities in float32
DECODINGS = [Decoding(), Decoding(0.7), Decoding(0.0), Decoding(1.2, 5), Decoding(1.0, None, 0.8)]


def build(name="pgm", vocab=VOCAB, length=LENGTH, **options):
    torch.manual_seed(0)
    sizes = {"length": length, "width": 128, "depth": 4, "heads": 2} | options
    model = METHODS[name].build(TransformerOptions(**sizes), vocab)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model.cuda().eval()


def draw(model, speed, seed=3, rows=5, **options):
    return sample(model, rows, speed=speed, seed=seed, **options)


def plain_with_margins(model, rows, **options):
    """What the plain loop draws, and how near to a token's boundary each row's draws came."""
    nearest = torch.ones(rows, dtype=torch.float64, device="cuda")
    draw_tokens = SamplingContext.draw

    def watched(self, log_probs, step, at, positions):
        cumulative = weights(log_probs, self.decoding).cumsum(-1)
        u = self.noise.uniform_at(Purpose.TOKEN, step, at, positions)
        margins = (cumulative / cumulative[:, -1:] - u[:, None]).abs().amin(-1)
        nearest.scatter_reduce_(0, at, margins, "amin")
        return draw_tokens(self, log_probs, step, at, positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SamplingContext, "draw", watched)
        return draw(model, "eager", rows=rows, **options), nearest


def agrees_with_the_plain_loop(name, speed):
    """Rows are equal, but for those with a draw within float32's rounding of a boundary."""
    model = build(name)
    settings = ({"steps": 7}, {"steps": 100}, {"sampler": "ordered", "steps": 12})
    for options in (*settings, {"steps": 7, "seed": 4}):
        plain, nearest = plain_with_margins(model, 40, **options)
        sure = nearest > ROUNDING
        assert sure.double().mean() > 0.8
        for turn in range(2):  # with graphs that are new, and with those that are there
            equal = (draw(model, speed, rows=40, **options) == plain).all(1)
            differ = (~equal & sure).double().mean()
            assert differ == 0, f"{name}, {options}, turn {turn}: {differ:.0%} of rows differ"


@pytest.mark.parametrize("name", METHODS_WITH_PROGRAMS)
def test_programs_draw_the_tokens_of_the_plain_loop(name):
    agrees_with_the_plain_loop(name, "cudagraph")


def test_compiled_programs_draw_the_tokens_of_the_plain_loop():
    """In a process of its own: the compiler cannot read functions with checks of their shapes."""
    calls = [f"agrees_with_the_plain_loop({name!r}, 'compile')" for name in METHODS_WITH_PROGRAMS]
    program = "from tests.execution.test_cuda_fast import *; " + "; ".join(calls)
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("wanted", [False, True])
def test_heads_of_odd_sizes(wanted):
    """In half precision rows of zeros make the size of the head even, and nothing comes of them."""
    torch.manual_seed(0)
    hidden = torch.randn(70, 32, device="cuda", requires_grad=wanted)
    head = torch.randn(131, 32, device="cuda", requires_grad=wanted)
    bias = torch.randn(131, device="cuda", requires_grad=wanted)
    targets, weights = torch.arange(70, device="cuda"), torch.rand(70, device="cuda")
    outcomes = []
    for half in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            total, nats = weighted_nats(hidden, head, bias, targets, weights, forbidden=130)
        slopes = torch.autograd.grad(total, [hidden, head, bias]) if wanted else ()
        outcomes.append([total.detach(), nats, *slopes])
    for whole, near in zip(*outcomes, strict=True):
        assert whole.shape == near.shape
        assert float((whole - near).abs().max()) < 0.05 * float(whole.abs().max())


def finds_segments():
    find = torch.compile(sequence_at, dynamic=True)
    for offsets in ([0, 3, 3, 7], [0, 0, 5], [0, 1]):
        given = torch.tensor(offsets, device="cuda")
        assert torch.equal(find(given, 9), sequence_at(given, 9))


def test_graphs_share_their_memory():
    """Each of dozens of graphs takes what the largest of them needs, not what all of them do."""
    model = build("pgm", length=512, width=256)
    draw(model, "eager", rows=32, steps=40)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    draw(model, "cudagraph", rows=32, steps=1)  # one large step
    one = torch.cuda.max_memory_reserved() - before
    draw(model, "cudagraph", rows=32, steps=40)
    assert torch.cuda.max_memory_reserved() - before < 3 * one + 2**27


def test_segments_are_found_by_compiled_programs_too():
    """A search in a slice of the offsets once began before the slice."""
    program = "from tests.execution.test_cuda_fast import *; finds_segments()"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_prompts_labels_and_registers(name):
    model = build(name, classes=3, registers=3, grid=8)
    known = torch.rand(5, LENGTH, device="cuda") < torch.rand(5, 1, device="cuda")
    prompt = Prompt(torch.randint(0, VOCAB, (5, LENGTH), device="cuda"), known)
    options = {"prompt": prompt, "steps": 9, "label": torch.arange(5, device="cuda") % 3}
    drawn = sample(model, speed="cudagraph", **options)
    assert torch.equal(drawn, sample(model, speed="eager", **options))
    assert torch.equal(drawn[known], prompt.tokens[known])


def test_new_weights_are_used():
    model = build()
    before = draw(model, "cudagraph", steps=6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = draw(model, "cudagraph", steps=6)
    assert torch.equal(after, draw(model, "eager", steps=6))
    assert not torch.equal(after, before)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_drawn_tokens(decoding):
    torch.manual_seed(0)
    for size in (7, 2048, 5000):
        logits = 3 * torch.randn(4000, size, device="cuda")
        logits[:, size // 2] = -torch.inf
        u = torch.rand(4000, dtype=torch.float64, device="cuda")
        from partita.kernels.draws import draw_tokens

        tokens, broken = draw_tokens(logits, u, *astuple(decoding), forbidden=size - 1)
        oracle = sample_categorical(logits[:, :-1], u, decoding)
        assert not broken.any()
        assert int((tokens != oracle).sum()) <= 1  # a draw within rounding of a boundary


@pytest.mark.parametrize("name", ["mdlm", "md4", "pgm", "mdlm-complementary", "ar"])
@pytest.mark.parametrize("half", [False, True])
def test_fused_losses(name, half):
    model = build(name).train()
    tokens = torch.randint(0, VOCAB, (6, LENGTH), device="cuda")
    found = []
    for fused in (False, True):
        model.network.fused = fused
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model.loss(Batch.of(tokens), Noise.for_batch(0, 6, 0, "cuda"), 1)
        loss.objective.backward()
        found.append((loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (plain, slopes), (fused, others) = found
    near = {"atol": 2e-2, "rtol": 5e-2} if half else {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(fused.per_token, plain.per_token.detach(), **near)
    for slope, other in zip(slopes, others, strict=True):
        scale = float(slope.abs().max()) + 1e-12
        assert float((slope - other).abs().max()) <= (0.05 if half else 1e-4) * scale


def test_half_precision_is_near_the_whole():
    """Log-probabilities of a captured step cannot be seen; those of its network can."""
    model = build("pgm", length=256)
    tokens = torch.randint(0, VOCAB, (4, 256), device="cuda")
    revealed = torch.rand(4, 256, device="cuda") < 0.5
    rows, positions = (~revealed).nonzero(as_tuple=True)
    with torch.no_grad():
        whole = model.predict(tokens, revealed, rows, positions)
        with torch.autocast("cuda", torch.bfloat16):
            half = model.predict(tokens, revealed, rows, positions)
        with torch.autocast("cuda", torch.bfloat16), torch.enable_grad():  # by torch's kernel
            other = model.predict(tokens, revealed, rows, positions).detach()
    for near in (half, other):
        difference = (whole.exp() - near.exp()).abs().sum(-1) / 2
        assert float(difference.mean()) < 0.05  # total variation


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_the_law_of_a_program(name):
    """Enumerated: one position after the other from left to right."""
    model, length, vocab = build(name, vocab=3, length=3), 3, 3
    law = torch.zeros(vocab**length, dtype=torch.float64)
    for index, sequence in enumerate(itertools.product(range(vocab), repeat=length)):
        tokens = torch.tensor([sequence], device="cuda")
        log_p = 0.0
        for position in range(length):
            seen = (torch.arange(length, device="cuda") < position)[None]
            where = torch.tensor([0], device="cuda"), torch.tensor([position], device="cuda")
            with torch.no_grad():
                answer = model.predict(torch.where(seen, tokens, model.mask_id), seen, *where)
            log_p += float(answer[0, sequence[position]].double())
        law[index] = log_p
    drawn = sample(
        model, 20_000, sampler="ordered", order="left-to-right", speed="cudagraph", seed=1
    )
    law = law.exp()
    assert_law(drawn.cpu(), law / law.sum())  # each prediction was rounded to float32
