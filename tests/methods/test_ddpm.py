"""DDPM as modules: normals with an address, networks, losses, samplers, embeddings, an example."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy import special, stats

from partita.config.training import TrainingOptions
from partita.contracts.batch import Batch
from partita.contracts.layouts import PackedLayout
from partita.errors import InputError
from partita.methods.base import METHODS
from partita.methods.contracts import Model
from partita.methods.ddpm import DDPM
from partita.methods.diffusion_lm import EmbeddingDDPM
from partita.networks import TransformerOptions
from partita.networks.unet import UNet
from partita.processes.gaussian import GaussianProcess, gaussian, make_process
from partita.randomness import Noise, Purpose, standard_normal
from partita.samplers import SAMPLERS, Prompt, sample
from partita.samplers.gaussian import sample_ddpm, visited
from partita.training.loop import fit

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
POSITIONS = torch.arange(400)[None]
LEVEL = 1e-3  # of every test of a distribution here; seeds are fixed
TEXT = [name for name in SAMPLERS if SAMPLERS[name].family == "gaussian"]
LENGTH, VOCAB = 6, 5
LABEL = torch.ones(1, dtype=torch.int64)

# Normals -----------------------------------------------------------------------------------------


def test_normals_are_normal():
    z = Noise.for_batch(1, 500).normal(Purpose.STATE, 0, POSITIONS).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > LEVEL
    for far in (2.5, 3.0, 3.5, 4.0):  # how many lie beyond is binomial
        for beyond in (int((z > far).sum()), int((z < -far).sum())):
            assert stats.binomtest(beyond, len(z), stats.norm.sf(far)).pvalue > LEVEL


def test_normals_are_exact_in_both_tails():
    """Against scipy's quantiles, down to the first and the last of the 2^53 cells."""
    cells = torch.tensor([0, 1, 2, 1000, 2**30, 2**52 - 1], dtype=torch.int64)
    low, high = cells.double() * 2.0**-53, (2**53 - 1 - cells).double() * 2.0**-53
    expected = torch.from_numpy(special.ndtri((cells.double().numpy() + 0.5) * 2.0**-53))
    torch.testing.assert_close(standard_normal(low), expected, rtol=1e-13, atol=0)
    assert torch.equal(standard_normal(high), -standard_normal(low))
    assert float(standard_normal(low)[0]) == pytest.approx(-8.29, abs=0.01)


def test_normals_have_an_address():
    noise = Noise.for_batch(7, 6)
    table = noise.normal(Purpose.STATE, 3, POSITIONS)
    alone = Noise.for_batch(7, 1, first=4).normal(Purpose.STATE, 3, POSITIONS[:, 10:20])
    assert torch.equal(table[4:5, 10:20], alone)
    others = [
        noise.normal(Purpose.STATE, 4, POSITIONS),
        noise.normal(Purpose.MASK, 3, POSITIONS),
        noise.normal(Purpose.STATE, 3, POSITIONS + 400),
        noise.fork(1).normal(Purpose.STATE, 3, POSITIONS),
    ]
    for other in others:
        pair = torch.stack([table.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / math.sqrt(table.numel())


def test_a_longer_sequence_begins_with_the_noise_of_a_shorter_one():
    noise = Noise.for_batch(0, 2)
    short, long = (gaussian(noise, Purpose.STATE, 1, torch.zeros(2, n, 3)) for n in (4, 9))
    assert torch.equal(long[:, :4], short)


# Continuous data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 28, 28), (1, 7, 10)])
def test_unet_keeps_the_shape_and_starts_at_zero(channels, height, width):
    network = UNet(channels, multipliers=(1, 1, 2), depth=2, classes=3)
    x, t = torch.randn(2, channels, height, width), torch.tensor([1, 900])
    assert torch.equal(network(x, t), torch.zeros_like(x))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    label = torch.tensor([0, 2])
    answer = network(x, t, label)
    assert answer.shape == x.shape
    assert not torch.equal(answer, network(x, t + 5, label))
    assert not torch.equal(answer, network(x, t, label + torch.tensor([1, 0])))
    answer.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("prediction", ["noise", "clean", "velocity"])
def test_loss_and_samples_do_not_depend_on_the_batch(prediction):
    torch.manual_seed(0)
    network = UNet()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model = DDPM(network, steps=12, prediction=prediction, levels=17)
    x = torch.rand(4, 1, 8, 8) * 2 - 1
    for loss in (model.loss, model.bound):
        together = loss(x, Noise.for_batch(1, 4), 3)
        alone = [loss(x[i : i + 1], Noise.for_batch(1, 1, i), 3, batch=4) for i in range(4)]
        torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-5)
    for options in ({}, {"eta": 0.0, "steps": 4}, {"variance": "large", "steps": [12, 5, 2]}):
        together = sample_ddpm(model, (1, 8, 8), 3, seed=2, clip=1.0, **options)
        alone = [
            sample_ddpm(model, (1, 8, 8), 1, seed=2, first=i, clip=1.0, **options) for i in range(3)
        ]
        torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-5)
        assert float(together.abs().max()) <= 1
        assert not torch.equal(
            together, sample_ddpm(model, (1, 8, 8), 3, seed=3, clip=1.0, **options)
        )


def test_the_simple_loss_is_the_error_of_the_noise():
    """Eq. 14, with a network that returns 0: the mean square of epsilon itself."""
    model = DDPM(lambda x, t: torch.zeros_like(x), steps=10)  # noqa: ARG005
    noise, x = Noise.for_batch(5, 3), torch.randn(3, 4, 2)
    epsilon = gaussian(noise, Purpose.MASK, 2, x)
    torch.testing.assert_close(model.loss(x, noise, 2), (epsilon**2).mean((1, 2)))


def test_visited_steps():
    assert visited(4) == [4, 3, 2, 1, 0]
    assert visited(1000, 4) == [1000, 750, 500, 250, 0]
    assert visited(10, 10) == visited(10)
    assert visited(10, [10, 3]) == [10, 3, 0]
    for steps in range(1, 38):
        path = visited(37, steps)
        assert (path[0], path[-1], len(path)) == (37, 0, steps + 1)
        assert path == sorted(set(path), reverse=True)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("schedule", lambda model: DDPM(model.network, schedule="linaer")),
        ("schedule", lambda model: make_process("linear", 10, speed=2)),  # noqa: ARG005
        ("schedule.first", lambda model: make_process("linear", 10, first=-1.0)),  # noqa: ARG005
        ("steps", lambda model: DDPM(model.network, steps=1)),
        ("betas", lambda model: GaussianProcess(torch.tensor([0.1, 1.0]).double())),  # noqa: ARG005
        ("prediction", lambda model: DDPM(model.network, prediction="x")),
        ("variance", lambda model: DDPM(model.network, variance="huge")),
        ("levels", lambda model: DDPM(model.network, levels=1)),
        ("variance", lambda model: sample_ddpm(model, (2,), variance="huge")),
        ("eta", lambda model: sample_ddpm(model, (2,), eta=1.5)),
        ("steps", lambda model: sample_ddpm(model, (2,), steps=11)),
        ("steps", lambda model: sample_ddpm(model, (2,), steps=[11, 3])),
        ("steps", lambda model: sample_ddpm(model, (2,), steps=[5, 3])),
        ("count", lambda model: sample_ddpm(model, (2,), 0)),
        ("seed", lambda model: sample_ddpm(model, (2,), seed=-1)),
        ("width", lambda model: UNet(width=30)),  # noqa: ARG005
        ("label", lambda model: UNet()(torch.zeros(1, 1, 8, 8), torch.ones(1), LABEL)),  # noqa: ARG005
    ],
)
def test_bad_input(argument, call):
    model = DDPM(lambda x, t: x, steps=10)  # noqa: ARG005
    with pytest.raises(InputError) as caught:
        call(model)
    assert caught.value.argument == argument


# Tokens ------------------------------------------------------------------------------------------


def tiny(**options):
    torch.manual_seed(0)
    network = TransformerOptions(length=LENGTH, width=16, depth=1, heads=2)
    choices = {"steps": 20, "dimensions": 4, **options}
    return METHODS["ddpm"].build(network, VOCAB, **choices)


@pytest.fixture(scope="module")
def shaken():
    model = tiny()
    for parameter in model.network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module")
def repeating():
    """A model that has learned from sequences that repeat one token, and its bound before that."""
    model = tiny(steps=100)
    untrained = bound_of(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(200):
        tokens = torch.randint(VOCAB, (64, 1)).expand(-1, LENGTH)
        optimiser.zero_grad()
        model.loss(Batch.of(tokens), Noise.for_batch(0, 64), step).objective.backward()
        optimiser.step()
    return model, untrained


def bound_of(model):
    """Nats of a sequence that repeats one token, over all the tokens."""
    tokens = torch.arange(VOCAB).repeat(100)[:, None].expand(-1, LENGTH)
    with torch.no_grad():
        draws = [
            model.loss(Batch.of(tokens), Noise.for_batch(9, 500), i).per_sequence for i in range(8)
        ]
    return float(torch.stack(draws).mean())


def test_the_method_is_a_model(shaken):
    assert isinstance(shaken, EmbeddingDDPM)
    assert isinstance(shaken, Model)
    assert (shaken.length, shaken.vocab_size, shaken.mask_id) == (LENGTH, VOCAB + 1, VOCAB)
    assert shaken.process.steps == 20
    length = shaken.vectors().square().sum(-1)
    torch.testing.assert_close(length, torch.full((VOCAB,), 4.0))


def test_loss_has_the_shape_of_every_other(shaken):
    tokens = torch.randint(VOCAB, (4, LENGTH))
    valid = torch.arange(LENGTH).expand(4, -1) < torch.tensor([6, 4, 2, 6])[:, None]
    loss = shaken.loss(Batch.of(tokens, is_token=valid), Noise.for_batch(0, 4), 2)
    assert int(loss.tokens) == 18
    assert torch.equal(loss.counted, valid)
    assert not bool(loss.per_token[~valid].any())
    torch.testing.assert_close(loss.objective, loss.per_sequence.sum() / 18)
    changed = torch.where(valid, tokens, (tokens + 1) % VOCAB)
    again = shaken.loss(Batch.of(changed, is_token=valid), Noise.for_batch(0, 4), 2)
    assert torch.equal(again.per_token, loss.per_token)
    alone = shaken.loss(
        Batch.of(tokens[1:2], size=4, is_token=valid[1:2]), Noise.for_batch(0, 1, 1), 2
    )
    torch.testing.assert_close(alone.per_token, loss.per_token[1:2], rtol=1e-4, atol=1e-4)


def test_half_precision_moves_the_loss_little(shaken):
    tokens = torch.randint(VOCAB, (64, LENGTH))
    full = shaken.loss(Batch.of(tokens), Noise.for_batch(0, 64)).objective
    with torch.autocast("cpu", torch.bfloat16):
        half = shaken.loss(Batch.of(tokens), Noise.for_batch(0, 64)).objective
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.02, atol=0)


def test_weights_are_all_there_is_to_keep(shaken):
    """A model built in shape alone, as loading does, is whole once it has the weights."""
    with torch.device("meta"):
        other = tiny()
    other.load_state_dict(shaken.state_dict(), assign=True)
    tokens, noise = torch.randint(VOCAB, (2, LENGTH)), Noise.for_batch(0, 2)
    assert torch.equal(
        other.loss(Batch.of(tokens), noise).per_token,
        shaken.loss(Batch.of(tokens), noise).per_token,
    )


def test_documents_that_share_a_row_do_not_read_each_other(shaken):
    tokens = torch.randint(VOCAB, (2, LENGTH))
    other = tokens.clone()
    other[:, 3:] = (other[:, 3:] + 1) % VOCAB
    ends = torch.zeros_like(tokens, dtype=torch.bool)
    ends[:, 2] = True
    layout = PackedLayout.of_documents(ends)
    noise = Noise.for_batch(0, 2)
    one, two = (
        shaken.loss(Batch.of(x, layout=layout), noise).per_token[:, :3] for x in (tokens, other)
    )
    torch.testing.assert_close(one, two)
    assert not torch.allclose(one, shaken.loss(Batch.of(tokens), noise).per_token[:, :3])


def test_fixed_embeddings_stay():
    model = tiny(learned=False)
    before = model.vectors().clone()
    stream = torch.randint(VOCAB, (200,))
    fit(model, stream, TrainingOptions(steps=3, batch_size=4, learning_rate=1e-2))
    assert torch.equal(model.vectors(), before)


def test_training_comes_near_the_entropy_and_stays_above(repeating):
    """ln V nats for a whole sequence; an untrained model takes its tokens for independent."""
    model, untrained = repeating
    assert untrained == pytest.approx(LENGTH * math.log(VOCAB), rel=0.15)
    assert math.log(VOCAB) < bound_of(model) < 0.4 * untrained
    drawn = sample(model, 64, sampler="ddpm", seed=1)
    assert float((drawn == drawn[:, :1]).all(-1).float().mean()) > 0.8
    assert len(drawn[:, 0].unique()) == VOCAB


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("rounding", ["softmax", "nearest"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_samples_are_tokens_and_prompts_are_kept(shaken, name, rounding, temperature):
    tokens = torch.randint(VOCAB, (5, LENGTH))
    prompt = Prompt(tokens, torch.rand(5, LENGTH) < 0.5)
    options = {"sampler": name, "rounding": rounding, "temperature": temperature, "steps": 7}
    seen = []
    drawn = sample(shaken, prompt=prompt, seed=1, callback=seen.append, **options)
    assert torch.equal(drawn[prompt.known], tokens[prompt.known])
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < VOCAB
    assert [step.index for step in seen] == list(range(7))
    assert all(step.total == 7 for step in seen)
    assert torch.equal(seen[-1].state.tokens, drawn)
    assert bool(seen[-1].state.revealed.all())
    assert all(torch.equal(step.state.revealed, prompt.known) for step in seen[:-1])


@pytest.mark.parametrize("name", TEXT)
def test_a_sample_does_not_depend_on_its_batch(shaken, name):
    options = {"sampler": name, "seed": 5, "steps": 10, "top_k": 3}
    together = sample(shaken, 6, **options)
    alone = torch.cat([sample(shaken, 1, first=i, **options) for i in range(6)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, sample(shaken, 6, **{**options, "seed": 6}))
    assert sample(shaken, 1, length=3, **options).shape == (1, 3)


def test_a_prompt_moves_what_is_sampled(repeating):
    """Where a model has learned that tokens repeat, a few known ones decide the others."""
    tokens = torch.arange(VOCAB).repeat(20)[:, None].expand(-1, LENGTH)
    known = torch.zeros_like(tokens, dtype=torch.bool)
    known[:, 2:4] = True
    for name in TEXT:
        agree = []
        for repeats in (1, 5):
            seen = []
            drawn = sample(
                repeating[0],
                prompt=Prompt(tokens, known),
                sampler=name,
                steps=25,
                seed=0,
                repeats=repeats,
                callback=seen.append,
            )
            agree.append(float((drawn == tokens)[~known].float().mean()))
            assert [step.index for step in seen] == list(range(24 * repeats + 1))
        assert agree[0] > 0.3  # by chance it would be 0.2
        assert agree[1] > agree[0] + 0.1


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("schedule", lambda _: tiny(schedule="quick")),
        ("steps", lambda _: tiny(steps=1)),
        ("schedule", lambda _: tiny(schedule_options={"speed": 1.0})),
        ("dimensions", lambda _: tiny(dimensions=0)),
        ("rounding", lambda model: sample(model, 1, sampler="ddpm", rounding="up")),
        ("repeats", lambda model: sample(model, 1, sampler="ddpm", repeats=0)),
        ("eta", lambda model: sample(model, 1, sampler="ddim", steps=2, eta=-0.1)),
        ("steps", lambda model: sample(model, 1, sampler="ddim", steps=21)),
        ("sampler", lambda model: sample(model, 1, sampler="ancestral")),
        (
            "tokens",
            lambda model: model.loss(Batch.of(torch.full((1, 2), VOCAB)), Noise.for_batch(0, 1)),
        ),
    ],
)
def test_bad_input_about_tokens(shaken, argument, call):
    with pytest.raises(InputError) as caught:
        call(shaken)
    assert caught.value.argument == argument


# The example -------------------------------------------------------------------------------------


def test_the_example_draws_digits(tmp_path):
    picture = tmp_path / "digits.png"
    command = [
        sys.executable,
        str(EXAMPLE),
        str(picture),
        "--seconds",
        "1",
        "--steps",
        "10",
        "--rows",
        "1",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "bits per dimension" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
