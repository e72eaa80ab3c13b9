"""Networks of pixels, who may use them, and MD4 with them on digits."""

from __future__ import annotations

import math

import pytest
import torch

import partita
from partita.config.method import MethodOptions
from partita.config.recipe import Recipe, differences
from partita.config.training import TrainingOptions
from partita.contracts.layouts import DenseLayout, PackedLayout, Queries
from partita.data.images import digits
from partita.data.tokenizers import CharacterTokenizer
from partita.errors import InputError
from partita.likelihood.bounds import nelbo
from partita.methods import MD4, MaskGIT
from partita.models.text_model import TextModel
from partita.networks import NETWORKS, TransformerConfig, TransformerOptions
from partita.networks.kinds import make_network
from partita.networks.pixels import ImageShape
from partita.randomness import Noise
from partita.training.loop import fit
from partita.training.throughput import flops_per_token

LEVELS, MASK = 5, 5
IMAGE = ImageShape(height=4, width=6, channels=3)
LENGTH = math.prod(IMAGE)
COLORED = {"channels": 3}
SIZES = {"length": LENGTH, "grid": 18, "width": 16, "depth": 2, "heads": 2}
every_kind = pytest.mark.parametrize("kind", ["unet", "patches"])
every_head = pytest.mark.parametrize("head", ["categorical", "logistic"])


def build(kind, head="categorical", own=COLORED, **options):
    """A network in which no parameter is zero."""
    config = TransformerConfig(
        kind=kind,
        options={"levels_head": head, **own},
        vocab_size=LEVELS + 1,
        output_size=LEVELS,
        time=True,
        classes=3,
        **{**SIZES, **options},
    )
    network = make_network(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network.eval()


def images(count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, LEVELS + 1, (count, LENGTH), generator=generator)


# Networks ----------------------------------------------------------------------------------------


@every_kind
@every_head
def test_queries_are_rows_of_the_full_answer(kind, head):
    network, tokens = build(kind, head), images()
    scalar, label = torch.tensor([10.0, 500.0]), torch.tensor([0, 2])
    everywhere = network(tokens, scalar=scalar, label=label)
    assert everywhere.shape == (2, LENGTH, LEVELS)
    queries = Queries(torch.tensor([1, 0, 1]), torch.tensor([3, 7, LENGTH - 1]))
    asked = network(tokens, queries=queries, scalar=scalar, label=label)
    torch.testing.assert_close(asked, everywhere[queries.rows, queries.positions])


@every_kind
def test_time_and_label_change_the_answer(kind):
    network, tokens = build(kind), images()
    calls = [{}, {"scalar": torch.full((2,), 300.0)}, {"label": torch.tensor([1, 1])}]
    answers = [network(tokens, **call) for call in calls]
    for first in range(3):
        for second in range(first):
            assert (answers[first] - answers[second]).abs().max() > 1e-3


@every_kind
def test_every_pixel_and_channel_is_read(kind):
    """Attention is in both networks: each logit depends on each token, in its own row alone."""
    network, tokens = build(kind), images(count=1).repeat(2, 1)
    before = network(tokens)
    for position in (0, 1, 19, LENGTH - 1):
        changed = tokens.clone()
        changed[1, position] = (changed[1, position] + 1) % LEVELS
        moved = (network(changed) - before).abs().amax(-1)
        assert (moved[1] > 0).all()
        assert (moved[0] < 1e-5).all()


@every_kind
def test_values_under_masks_do_not_leak(kind):
    method, tokens = MD4(build(kind)), images() % LEVELS
    revealed = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    rows, positions = (~revealed).nonzero(as_tuple=True)
    time = torch.tensor([0.3, 0.8])
    other = torch.where(revealed, tokens, (tokens + 1) % LEVELS)
    ours = [method.predict(x, revealed, rows, positions, time) for x in (tokens, other)]
    assert torch.equal(*ours)
    torch.testing.assert_close(ours[0].exp().sum(-1), torch.ones(len(rows)))


@pytest.mark.parametrize("patch", [1, 2])
def test_patches_hold_the_pixels_that_lie_together(patch):
    network = build("patches", own=COLORED | {"patch": patch}, width=8, heads=2)
    tokens = torch.arange(LENGTH)[None]
    patches = network._cut(tokens.view(1, *IMAGE))
    assert patches.shape == (1, 24 // patch**2, 3 * patch**2)
    pixel = tokens.view(IMAGE)
    assert torch.equal(patches[0, -1], pixel[-patch:, -patch:].flatten())
    if patch == 2:  # the second patch of the first row
        assert torch.equal(patches[0, 1], pixel[:2, 2:4].flatten())
    size = network.head_size
    numbers = patches[..., None].expand(-1, -1, -1, size).flatten(2)
    assert torch.equal(network._joined(numbers)[..., 0], tokens)


@every_kind
@every_head
def test_gradients_reach_every_parameter(kind, head):
    network = build(kind, head, dropout=0.1).train()
    network.recompute = True
    method = MD4(network)
    tokens, noise = images(count=4) % LEVELS, Noise.for_batch(0, 4)
    loss = method.loss(partita.Batch.of(tokens, label=torch.tensor([0, 1, 2, 3])), noise)
    loss.objective.backward()
    # A row of an embedding, or a head's slice, may be for what was not drawn; no tensor is.
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@every_kind
@every_head
def test_untrained_networks_know_nothing(kind, head):
    """The categorical head is uniform at first; the logistics share out the range."""
    options = TransformerOptions(kind=kind, options={"levels_head": head, **COLORED}, **SIZES)
    method = MethodOptions(name="md4").build(options, LEVELS)
    tokens = images() % LEVELS
    answer = method.predict(tokens, tokens > 9, *torch.zeros(2, 1).long(), torch.ones(2))
    expected, tolerance = torch.full((LEVELS,), 1 / LEVELS), 0.1 if head == "logistic" else 1e-6
    torch.testing.assert_close(answer.exp()[0], expected, atol=tolerance, rtol=0)


# What is refused ---------------------------------------------------------------------------------

LOGISTIC = {"levels_head": "logistic"}
WRONG = [
    ("md4", {"kind": "u-net"}, r"network\.kind: unknown name 'u-net'; did you mean 'unet'\?"),
    ("md4", {"kind": "unet"}, r"network\.grid: is 0, but an image has columns"),
    (
        "md4",
        {"kind": "unet", "grid": 8, "options": COLORED},
        r"no row of pixels with 3 channels each",
    ),
    (
        "md4",
        {"kind": "patches", "grid": 8, "options": {"patch": 3}},
        r"options\.patch: 8 x 8 pixels are no",
    ),
    (
        "md4",
        {"kind": "unet", "grid": 8, "options": {"patch": 4}},
        r"options\.patch: unet has no such",
    ),
    ("md4", {"kind": "unet", "grid": 8, "registers": 1}, r"network\.registers: is 1, but"),
    ("md4", {"kind": "patches", "grid": 8, "options": {"positions": ""}}, r"patches has no such"),
    ("md4", {"kind": "unet", "grid": 8, "condition_width": 7}, r"must be even"),
    ("md4", {"options": COLORED}, r"options\.channels: transformer has no such choice"),
    ("md4", {"options": {"levels_head": "normal"}}, r"options\.levels_head: unknown name 'normal'"),
    ("md4", {"options": {"logistics": 0}}, r"options\.logistics: must be at least 1"),
    ("mdlm", {"options": LOGISTIC}, r"predicts ids that are no levels in order"),
    ("ar", {"options": LOGISTIC}, r"levels_head: causal has no such choice"),
    ("sedd", {"options": LOGISTIC}, r"options\.levels_head: is 'logistic', but sedd"),
    (
        "pgm",
        {"kind": "unet", "grid": 8},
        r"network\.kind: 'unet' reads tokens, but .* fit: partition",
    ),
    ("ar", {"kind": "patches"}, r"network\.kind: 'patches' reads tokens, .* fit: causal"),
    ("flexmdm", {"kind": "unet"}, r"network\.kind: 'unet' reads tokens, but .* fit: flexible"),
    ("ddpm", {"kind": "unet"}, r"network\.kind: 'unet' reads tokens, but .* fit: vectors"),
]


@pytest.mark.parametrize(("method", "options", "message"), WRONG)
def test_what_cannot_be_is_refused(method, options, message):
    sizes = {"length": 64, "width": 16, "depth": 1, "heads": 2}
    with pytest.raises(InputError, match=message):
        MethodOptions(name=method).build(TransformerOptions(**{**sizes, **options}), 9)


@every_kind
def test_images_are_read_whole(kind):
    network, tokens = build(kind), images()
    with pytest.raises(InputError, match="are no images of 72 tokens"):
        network(tokens[:, :-1])
    for layout in (PackedLayout.of_lengths(torch.tensor([72, 72])), DenseLayout(causal=True)):
        with pytest.raises(InputError, match="layout"):
            network(tokens, layout=layout)


# How methods and recipes choose ------------------------------------------------------------------

USERS = ["md4", "mdlm", "maskgit", "mdlm-complementary", "genmd4", "d3pm", "sedd"]


@every_kind
@pytest.mark.parametrize("name", USERS)
def test_methods_that_read_noisy_tokens_take_every_kind(name, kind):
    method = MethodOptions(name=name).build(
        TransformerOptions(kind=kind, options=COLORED, **SIZES), LEVELS
    )
    assert isinstance(method.network, NETWORKS[kind].network)
    loss = method.loss(partita.Batch.of(images(count=4) % LEVELS), Noise.for_batch(0, 4), 0)
    assert torch.isfinite(loss.objective)


def test_old_recipes_are_as_they_were():
    """What a recipe written before there were kinds does not say, it means as it was."""
    now = Recipe().to_dict()
    old = Recipe().to_dict()
    for name in ("kind", "options"):
        del old["network"][name]
    assert Recipe.from_dict(old).to_dict() == now
    assert not differences(old, now)
    now["network"]["kind"] = "unet"
    assert differences(old, now) == ['network.kind: null -> "unet"']


@every_kind
@every_head
def test_saved_models_come_back(tmp_path, kind, head):
    own = {"levels_head": head, **COLORED}
    sections = {"method": {"name": "md4"}, "network": {"kind": kind, "options": own, **SIZES}}
    recipe, tokenizer = Recipe.from_dict(sections), CharacterTokenizer("abcde")
    method = recipe.method.build(recipe.network, LEVELS).eval()
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    TextModel(method, tokenizer, recipe, {}).save(tmp_path / "model")
    loaded = partita.load(tmp_path / "model", device="cpu")
    assert loaded.recipe == recipe
    tokens, scalar = images(), torch.tensor([1.0, 2.0])
    assert torch.equal(
        loaded.method.network(tokens, scalar=scalar), method.network(tokens, scalar=scalar)
    )
    assert "convolutions" in loaded.card() or "patches of 2 x 2" in loaded.card()


def test_work_is_counted_by_place():
    """A patch of 4 pixels with 3 channels shares one vector among 12 tokens."""
    options = {
        kind: TransformerOptions(kind=kind, options=COLORED, **SIZES)
        for kind in ("unet", "patches")
    }
    methods = {kind: MethodOptions(name="md4").build(x, LEVELS) for kind, x in options.items()}
    work = {kind: flops_per_token(methods[kind], options[kind].length) for kind in options}
    blocks = sum(p.numel() for p in methods["patches"].parameters() if p.ndim == 2)
    embedded = methods["patches"].network.embed.weight.numel()
    attention = 12 * (LENGTH / 12) * 2 * 16
    assert work["patches"] == pytest.approx((6 * (blocks - embedded) + attention) / 12)
    assert work["unet"] > work["patches"]


# Digits ------------------------------------------------------------------------------------------


def unigram_bits(train, test, *, everywhere):
    """Cross-entropy of held-out pixels under counts of levels (and one more of each).

    They are counted for each place, or `everywhere` at once.
    """
    seen = train.flatten()[:, None] if everywhere else train
    counts = torch.stack([torch.bincount(x, minlength=17) for x in seen.T]) + 1.0
    table = (counts / counts.sum(-1, keepdim=True)).log2().expand(test.shape[1], -1)
    return -float(table[torch.arange(test.shape[1]), test].mean())


@pytest.fixture(scope="module")
def split():
    pixels = digits().pixels.flatten(1).long()
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return pixels[order[197:]], pixels[order[:197]]


def learned(train, steps, network, **training):
    """MD4 after some seconds with digits."""
    torch.manual_seed(0)
    sizes = {"length": 64, "grid": 8, "condition_width": 32}
    options = TransformerOptions(**sizes, **network)
    model = MethodOptions(name="md4", schedule="linear").build(options, 17)
    fit(
        model,
        train.flatten(),
        TrainingOptions(steps=steps, batch_size=64, ema_decay=0.8, **training),
    )
    return model


def test_md4_learns_digits_by_convolutions(split):
    """In bits per dimension, below what is known of a place without the others."""
    network = {
        "kind": "unet",
        "options": {"levels_head": "logistic"},
        "width": 32,
        "depth": 1,
        "heads": 1,
    }
    model = learned(split[0], 170, network, learning_rate=6e-3)
    bound = nelbo(model, split[1], replicates=8, batch_size=197)
    assert bound.bits + 2 * bound.bits_error < unigram_bits(*split, everywhere=False)


def test_md4_learns_digits_by_patches(split):
    """A transformer learns more slowly: below what is known without places."""
    network = {"kind": "patches", "width": 128, "depth": 1, "heads": 4, "mlp": "gelu"}
    model = learned(split[0], 80, network, learning_rate=4e-3, optimizer="muon")
    bound = nelbo(model, split[1], replicates=4, batch_size=197)
    assert bound.bits + 4 * bound.bits_error < unigram_bits(*split, everywhere=True)


def test_samples_are_images(split):
    """Every sampler of the masked family takes these networks, as it takes any."""
    method = MaskGIT(build("unet", own={}, length=64, grid=8))
    assert split[0].shape[1] == method.length
    for sampler in ("ancestral", "confidence", "halton"):
        drawn = partita.sample(method, 2, sampler=sampler, steps=4, label=1)
        assert drawn.shape == (2, 64)
        assert int(drawn.max()) < LEVELS
