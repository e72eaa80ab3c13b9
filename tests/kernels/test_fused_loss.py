"""The fused loss: the plain one's numbers and gradients, without the logits of a whole batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.contracts.layouts import PackedLayout
from partita.kernels import cross_entropy
from partita.kernels.cross_entropy import weighted_nats
from partita.likelihood.bounds import nelbo
from partita.methods import AR, MDLM, METHODS
from partita.methods.inference import queries_everywhere
from partita.networks.options import TransformerOptions
from partita.processes.corruption import Corrupted
from partita.randomness import Noise

ROWS, LENGTH, VOCAB, WIDTH, CLASSES = 4, 12, 29, 8, 3
NAMES = ("mdlm", "md4", "maskgit", "pgm", "mdlm-complementary", "ar")
EXACT = {"rtol": 1e-10, "atol": 1e-14}
NOISE = Noise.for_batch(1, ROWS)
TOKENS = torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))

every_method = pytest.mark.parametrize("name", NAMES)


def build(name="mdlm", method=None, tokens=VOCAB, **options):
    """A method in float64 in which every parameter is random."""
    sizes = {"length": LENGTH, "width": WIDTH, "depth": 2, "heads": 2, "classes": CLASSES}
    chosen = TransformerOptions(**sizes | options)
    built = (method or METHODS[name]).build(chosen, tokens)
    generator = torch.Generator().manual_seed(0)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return built.double()


def padding():
    """Rows of different lengths; what stands behind their ends is no token."""
    return torch.arange(LENGTH) < torch.tensor([12, 5, 1, 9])[:, None]


def documents():
    ends = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.3
    return PackedLayout.of_documents(ends)


TOLD = {
    "nothing": {},
    "padding": {"is_token": padding()},
    "labels": {"label": torch.tensor([0, 2, 1, CLASSES])},
    "documents": {"layout": documents()},
    "everything": {
        "is_token": padding(),
        "label": torch.tensor([2, 2, 0, 1]),
        "layout": documents(),
    },
}


def learned(method, fused, groups=None, **told):
    """A loss and the gradients of all parameters."""
    method.network.fused = fused
    method.zero_grad()
    how = {} if groups is None else {"groups": groups}
    loss = method.loss(Batch.of(TOKENS, **told), NOISE, 0, **how)
    loss.objective.backward()
    return loss, {name: p.grad for name, p in method.named_parameters()}


def assert_same(method, **told):
    """Fused and plain agree in everything that a loss has, and in what it teaches."""
    plain, slopes = learned(method, False, **told)
    fused, fused_slopes = learned(method, True, **told)
    for part in ("objective", "per_token", "cross_entropy"):
        torch.testing.assert_close(getattr(fused, part), getattr(plain, part), **EXACT)
    assert torch.equal(fused.counted, plain.counted)
    assert torch.equal(fused.tokens, plain.tokens)
    assert fused_slopes.keys() == slopes.keys()
    for name, slope in slopes.items():
        assert slope is not None
        scale = float(slope.abs().max())
        torch.testing.assert_close(
            fused_slopes[name], slope, rtol=1e-10, atol=1e-10 * scale, msg=lambda m, n=name: n + m
        )


def assert_everywhere_same(method, **told):
    """A loss that asks visible places too is the same loss."""
    plain, slopes = learned(method, False, **told)
    method.everywhere = True
    for fused in (False, True):
        loss, found = learned(method, fused, **told)
        for part in ("objective", "per_token", "cross_entropy"):
            torch.testing.assert_close(getattr(loss, part), getattr(plain, part), **EXACT)
        assert torch.equal(loss.counted, plain.counted)
        for name, slope in slopes.items():
            scale = float(slope.abs().max())  # norms are float32, over more places than before
            torch.testing.assert_close(found[name], slope, rtol=1e-6, atol=1e-6 * scale)


# Against the plain loss --------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("told", TOLD)
def test_fused_is_plain(name, told):
    method = build(name)
    assert not method.network.fuses
    assert_same(method, **TOLD[told])
    assert method.network.fuses


@pytest.mark.parametrize("name", ["genmd4", "mdlm", "mdlm-complementary", "md4", "maskgit"])
@pytest.mark.parametrize("told", TOLD)
def test_asking_everywhere_is_asking_for_what_is_hidden(name, told):
    method = build(name)
    assert not queries_everywhere(method, TOKENS)  # on a CPU nobody waits
    assert_everywhere_same(method, **TOLD[told])


def test_asking_everywhere_with_the_mask_as_first_token():
    """Padding holds the mask, whose nats are infinite."""
    method = build("mdlm")
    first = MDLM(method.network, mask_id=0)
    losses = []
    for first.everywhere in (False, True):
        losses.append(first.loss(Batch.of(TOKENS.clamp(min=1), is_token=padding()), NOISE))
    torch.testing.assert_close(losses[1].objective, losses[0].objective, **EXACT)
    torch.testing.assert_close(losses[1].per_token, losses[0].per_token, **EXACT)


@every_method
@pytest.mark.parametrize("head_bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 3])
def test_in_chunks(name, head_bias, tokens, monkeypatch):
    """Few tokens at a time, the last chunk shorter than the others."""
    method = build(name, head_bias=head_bias)
    assert (method.network.head.bias is not None) == head_bias
    monkeypatch.setattr(cross_entropy, "CHUNK_BYTES", 4 * tokens * len(method.network.head.weight))
    sizes, scored = [], cross_entropy._scored
    monkeypatch.setattr(
        cross_entropy, "_scored", lambda *given: sizes.append(len(given[0])) or scored(*given)
    )
    assert_same(method, is_token=padding())
    assert max(sizes) == tokens
    assert len(sizes) > 3


@pytest.mark.parametrize("groups", [1, 2])
def test_either_group_of_a_partition(groups):
    assert_same(build("pgm"), groups=groups)


def test_a_mask_among_the_tokens():
    """Its logit counts for nothing wherever it stands."""
    method = build("mdlm")
    middle = MDLM(method.network, mask_id=VOCAB // 2)
    tokens = TOKENS.masked_fill(TOKENS.eq(middle.mask_id), 0)
    losses = []
    for fused in (False, True):
        method.network.fused = fused
        losses.append(middle.loss(Batch.of(tokens), NOISE).per_token.detach())
    torch.testing.assert_close(*losses, **EXACT)


class Warm(MDLM):
    """A parameterisation of its own."""

    def log_probabilities(self, logits):
        return super().log_probabilities(logits / 2)


class WarmAR(AR):
    """The same for a causal network."""

    def log_probabilities(self, logits):
        return super().log_probabilities(logits / 2)


@pytest.mark.parametrize("method", [Warm, WarmAR])
def test_a_parameterisation_of_its_own_is_kept(method):
    assert_same(build(method=method))


def test_nothing_hidden():
    """A law may hide no token at all; every parameter still has a gradient."""
    method = build()
    method.network.fused = True
    nothing = torch.zeros_like(TOKENS, dtype=torch.bool)
    drawn = Corrupted(nothing, torch.ones(TOKENS.shape), None)
    loss = method.loss_given(Batch.of(TOKENS, is_token=~nothing), drawn)
    loss.objective.backward()
    assert loss.objective.item() == 0
    assert not any(p.grad.any() for p in method.parameters())


# The function itself -----------------------------------------------------------------------------


def inputs(count=7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden, head, bias, weights = (
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((count, WIDTH), (VOCAB, WIDTH), (VOCAB,), (count,))
    )
    targets = torch.randint(VOCAB - 1, (count,), generator=generator)
    return hidden, head, bias, targets, weights


def by_hand(hidden, head, bias, targets, weights, forbidden):
    logits = F.linear(hidden, head, bias)
    if forbidden >= 0:
        logits = logits.index_fill(1, torch.tensor([forbidden]), -torch.inf)
    nats = F.cross_entropy(logits, targets, reduction="none")
    return (weights * nats).sum(), nats


@pytest.mark.parametrize("forbidden", [-1, VOCAB - 1])
@pytest.mark.parametrize("learns", [(0, 1, 2), (0,), (1,), (2,)])
def test_weights_of_any_sign_and_a_factor_behind(forbidden, learns):
    """Also where only the hidden vectors, the head or its bias learn."""
    slopes = []
    for function in (weighted_nats, by_hand):
        *tensors, targets, weights = inputs()
        for index in learns:
            tensors[index].requires_grad_()
        total, nats = function(*tensors, targets, weights, forbidden)
        (-3 * total).backward()
        slopes.append([total.detach(), nats.detach(), *(tensors[i].grad for i in learns)])
    torch.testing.assert_close(*slopes, **EXACT)


def test_no_tokens():
    hidden, head, bias, targets, weights = inputs(0)
    total, nats = weighted_nats(
        hidden.requires_grad_(), head.requires_grad_(), bias, targets, weights
    )
    total.backward()
    assert nats.shape == (0,)
    assert total.item() == 0
    assert hidden.grad.shape == (0, WIDTH)
    assert not head.grad.any()


def test_gradients_accumulate():
    method = build("pgm")
    _, once = learned(method, True)
    once = {name: slope.clone() for name, slope in once.items()}
    method.loss(Batch.of(TOKENS), NOISE).objective.backward()
    for name, parameter in method.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name])


def test_evaluation_computes_no_slopes(monkeypatch):
    method = build()
    plain = nelbo(method, TOKENS, batch_size=2)
    wanted, scored = [], cross_entropy._scored
    monkeypatch.setattr(
        cross_entropy, "_scored", lambda *given: wanted.append(given[-1]) or scored(*given)
    )
    method.network.fused = True
    assert nelbo(method, TOKENS, batch_size=2).nats == pytest.approx(plain.nats, rel=1e-12)
    with torch.no_grad():
        assert not method.loss(Batch.of(TOKENS), NOISE).objective.requires_grad
    assert wanted
    assert not any(wanted)


# What it is for ----------------------------------------------------------------------------------


def held(method, fused):
    """The largest tensor that is kept for the backward pass, and the size of all logits."""
    sizes = []
    method.network.fused = fused
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.append(x.numel()) or x, lambda x: x
    ):
        loss = method.loss(Batch.of(TOKENS.repeat(8, 1)), Noise.for_batch(1, 8 * ROWS))
    return max(sizes), int(loss.counted.sum()) * method.network.config.outputs


@every_method
def test_no_logits_are_held(name):
    method = build(name, tokens=401)
    most, logits = held(method, True)
    assert most < logits
    most, logits = held(method, False)
    assert most >= logits


@every_method
def test_bfloat16(name):
    """Products of 8 bits: nats within a hundredth, gradients within a twentieth of their size.

    (Attention that is twice as sharp rounds twice as much; the loss is what is looked at.)
    """
    method = build(name, qk_scale=1.0).float()
    exact, slopes = learned(method, True)
    slopes = {name: slope.clone() for name, slope in slopes.items()}
    with torch.autocast("cpu", torch.bfloat16):
        rounded, rounded_slopes = learned(method, True)
    assert rounded.objective.dtype == rounded.per_token.dtype == torch.float32
    assert rounded.objective.item() == pytest.approx(exact.objective.item(), rel=0.01)
    for part, slope in slopes.items():
        distance = float((rounded_slopes[part] - slope).norm())
        assert distance <= 0.05 * float(slope.norm()) + 1e-3, part


IMAGES = {"length": 16, "grid": 4, "classes": 0}


@pytest.mark.parametrize(
    "options",
    [
        {"options": {"levels_head": "logistic"}},
        IMAGES | {"kind": "patches", "options": {"patch": 2}},
        IMAGES | {"kind": "unet"},
    ],
)
def test_networks_that_keep_their_heads(options):
    network = build("md4", **options).network
    network.fused = True
    assert not network.fuses
