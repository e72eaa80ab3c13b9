"""Image tokenizers: pixels survive exactly, VQ networks learn, and what is saved comes back."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from partita.data.image_tokenizers import ImageTokenizer, PixelTokenizer, from_description
from partita.data.images import ImageOptions, Images, as_bytes, digits, read_images
from partita.data.saved_tokenizers import load_image_tokenizer, save_image_tokenizer
from partita.data.vq_tokenizer import VQTokenizer
from partita.errors import InputError
from partita.networks.quantizers import EMAQuantizer, FSQuantizer
from partita.networks.vq import VQConfig, VQNetwork, usage
from partita.training.vq import DiscretisedLogistic, VQOptions, measure_vq, train_vq

SMALL = VQConfig(width=16, codes=64, levels=(4, 4, 4))


def options(steps=30, **given):
    config = {name: given.pop(name) for name in list(given) if hasattr(SMALL, name)}
    network = VQConfig(**{"width": 8, "codes": 16, "levels": (4, 4), **config})
    return VQOptions(steps=steps, batch_size=32, learning_rate=3e-3, network=network, **given)


def colourful(count=5, size=(4, 6)):
    torch.manual_seed(0)
    return torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8)


# Pixels ------------------------------------------------------------------------------------------


def test_pixels_come_back_exactly():
    pixels = colourful()
    tokenizer = PixelTokenizer(256, 3, (4, 6))
    tokens = tokenizer.encode(pixels)
    assert isinstance(tokenizer, ImageTokenizer)
    assert tokens.shape == (5, 72)
    assert tokenizer.grid == (4, 18)
    assert torch.equal(tokenizer.decode(tokens), pixels)
    # Raster order, the channels of a pixel side by side.
    assert tokens[0, :6].tolist() == [*pixels[0, :, 0, 0].tolist(), *pixels[0, :, 0, 1].tolist()]
    assert tokens[0, 18] == pixels[0, 0, 1, 0]


@pytest.mark.parametrize("levels", [2, 5, 17, 255])
def test_tokens_of_fewer_levels_come_back_exactly(levels):
    tokenizer = PixelTokenizer(levels, 3, (4, 6))
    tokens = tokenizer.encode(colourful())
    assert int(tokens.max()) < tokenizer.vocab_size == levels
    assert torch.equal(tokenizer.encode(tokenizer.decode(tokens)), tokens)


def test_digits_keep_their_levels():
    images = digits()
    tokenizer = PixelTokenizer(17, 1, 8)
    tokens = tokenizer.encode(images)
    assert torch.equal(tokens.view(-1, 8, 8), images.pixels[:, 0].long())
    assert torch.equal(tokenizer.decode(tokens), images.bytes())
    assert torch.equal(images.bytes(), as_bytes(images.pixels, 17))


def test_pixels_refuse_what_is_no_token():
    tokenizer = PixelTokenizer(4, 1, 2)
    with pytest.raises(InputError, match=r"the ids are 0 to 4; there are 4, from 0 on; fill in"):
        tokenizer.decode(torch.tensor([[0, 1, 4, 0]]))
    with pytest.raises(InputError, match="rows have 3 tokens, an image 2 x 2"):
        tokenizer.decode(torch.tensor([[0, 1, 2]]))
    with pytest.raises(InputError, match=r"of \[3, 4, 6\] .*, where \[1, 2, 2\] are expected"):
        tokenizer.encode(colourful())
    for arguments in ((1, 1, 2), (257, 1, 2), (4, 0, 2), (4, 1, 0), (4, 1, (2, 0))):
        with pytest.raises(InputError):
            PixelTokenizer(*arguments)


# Quantisers --------------------------------------------------------------------------------------


def test_fsq_codes_are_numbers_of_grid_points():
    quantiser = FSQuantizer((4, 3, 2))
    points = [torch.linspace(-1, 1, n).tolist() for n in (2, 3, 4)]
    grid = torch.tensor([row[::-1] for row in itertools.product(*points)])
    assert quantiser.size == 24
    torch.testing.assert_close(quantiser.embed(torch.arange(24)), grid)
    inside = torch.atanh(grid * 0.99)  # tanh never reaches the ends
    assert torch.equal(quantiser(inside).codes, torch.arange(24))
    torch.testing.assert_close(quantiser(inside).values, grid)


@pytest.mark.parametrize("kind", ["ema", "fsq"])
def test_gradients_pass_through(kind):
    torch.manual_seed(0)
    quantiser = FSQuantizer((4, 4, 3)) if kind == "fsq" else EMAQuantizer(8, 3)
    vectors = torch.randn(20, 3, requires_grad=True)
    quantiser.revive(vectors, 0, 0)
    values, codes, _ = quantiser(vectors)
    torch.testing.assert_close(values, quantiser.embed(codes))
    (gradient,) = torch.autograd.grad(values.sum(), vectors)
    wanted = 1 - torch.tanh(vectors).square() if kind == "fsq" else torch.ones(20, 3)
    torch.testing.assert_close(gradient, wanted)


def test_a_codebook_follows_its_vectors():
    torch.manual_seed(0)
    quantiser = EMAQuantizer(6, 2, decay=0.5)
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    vectors = (centres[:, None] + 0.01 * torch.randn(3, 50, 2)).flatten(0, 1)
    assert quantiser.revive(vectors, 0, 0) == 6  # the first batch places all
    for step in range(1, 30):
        codes = quantiser(vectors).codes
        quantiser.follow(vectors, codes)
        quantiser.revive(vectors, 0, step)
    _, codes, commitment = quantiser(vectors)
    assert float(commitment) < 1e-3
    means = [vectors[codes == code].mean(0) for code in codes.unique()]
    torch.testing.assert_close(
        quantiser.codebook[codes.unique()], torch.stack(means), atol=0.02, rtol=0
    )
    distances = torch.cdist(vectors, quantiser.codebook)
    assert torch.equal(distances.argmin(1), codes)


def test_usage_counts_codes():
    used, perplexity = usage(torch.tensor([[0, 1], [0, 1]]), 5)
    assert used == 2
    assert perplexity == pytest.approx(2)


# Losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_scale", [-6.0, -2.0, 1.0])
def test_the_logistic_law_sums_to_one(log_scale):
    law = DiscretisedLogistic(1)
    torch.nn.init.constant_(law.log_scale, log_scale)
    every = torch.arange(256).float() / 127.5 - 1
    for guess in (-1.3, 0.017, 0.99):
        guesses = torch.full((1, 1, 1, 1), guess)
        nats = torch.stack([law(guesses, x.view(1, 1, 1, 1)) for x in every])
        assert bool(nats.isfinite().all())
        assert float(nats.double().neg().exp().sum().detach()) == pytest.approx(1, abs=1e-4)


# Training ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets():
    return [read_images("digits", ImageOptions(split)) for split in ("train", "test")]


@pytest.fixture(scope="module")
def learned(sets):
    """A tokenizer with 4 x 4 codes for 8 x 8 digits, and what its callback saw."""
    seen = []
    chosen = VQOptions(steps=150, learning_rate=3e-3, network=SMALL)
    return train_vq(sets[0], chosen, seen.append), seen


def test_vq_learns_digits(sets, learned):
    tokenizer, seen = learned
    quality = measure_vq(tokenizer, sets[1])
    # All grey at the mean is 0.14; one code for four pixels has to do much better.
    assert quality.error < 0.02
    assert quality.used > 32
    assert 16 < quality.perplexity <= quality.used <= quality.size == 64
    assert [progress.step for progress in seen] == [50, 100, 150]
    assert seen[-1].quality.error < seen[0].quality.error
    assert tokenizer.grid == (4, 4)
    assert tokenizer.encode(sets[1]).shape == (297, 16)


@pytest.mark.parametrize(
    "given",
    [
        {"quantiser": "fsq"},
        {"factor": 4, "reconstruction": "logistic"},
        {"factor": 8, "quantiser": "fsq"},
        {"adversarial": 0.1},
    ],
    ids=str,
)
def test_every_choice_trains_and_repeats(sets, given):
    one, two = (train_vq(sets[0], options(12, **given)) for _ in range(2))
    assert all(torch.equal(a, two.tensors()[name]) for name, a in one.tensors().items())
    side = 8 // given.get("factor", 2)
    assert one.grid == (side, side)
    other = train_vq(sets[0], options(12, seed=1, **given))
    assert not all(torch.equal(a, other.tensors()[name]) for name, a in one.tensors().items())


def test_training_leaves_the_callers_draws_alone(sets):
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    train_vq(sets[0], options(1))
    assert torch.equal(torch.rand(2), wanted)


def test_colours_and_oblong_images():
    images = Images(colourful(40, (8, 12)), torch.zeros(40, dtype=torch.long), 256)
    tokenizer = train_vq(images, options(2, factor=4))
    assert tokenizer.grid == (2, 3)
    tokens = tokenizer.encode(images)
    assert tokenizer.decode(tokens).shape == images.pixels.shape
    assert tokenizer.encode(images.pixels[:0]).shape == (0, 6)
    assert tokenizer.decode(tokens[:0]).shape == (0, 3, 8, 12)


def test_vq_refuses_what_does_not_fit(sets, learned):
    with pytest.raises(InputError, match=r"factor: 4 x 6 pixels are no multiple of the factor 8"):
        VQNetwork(VQConfig(factor=8), 3, (4, 6))
    bad = {"factor": 3, "width": 12, "depth": 0, "quantiser": "vq", "codes": 1, "dimension": 0}
    for name, value in bad.items():
        with pytest.raises(InputError) as caught:
            VQNetwork(VQConfig(**{name: value}), 1, (8, 8))
        assert caught.value.argument == name
    for levels in ((), (1, 4), (1 << 11, 1 << 11)):
        with pytest.raises(InputError, match="levels"):
            FSQuantizer(levels)
    bad = {"steps": 0, "learning_rate": 0.0, "seed": -1, "commitment": -1.0, "reconstruction": "l1"}
    for name, value in bad.items():
        with pytest.raises(InputError) as caught:
            VQOptions(**{name: value})
        assert caught.value.argument == name
    with pytest.raises(InputError, match=r"the ids are 0 to 64"):
        learned[0].decode(torch.full((1, 16), 64).tril())
    with pytest.raises(InputError, match="images: there are none"):
        train_vq(sets[0].select(torch.arange(0)), options(1))
    broken = VQOptions(steps=9, learning_rate=1e30, log_every=1, network=SMALL)
    with pytest.raises(InputError, match=r"training: the loss is (nan|inf) at step \d+; lower"):
        train_vq(sets[0], broken)


# Files -------------------------------------------------------------------------------------------


def tokenizers(learned, sets):
    return [learned[0], PixelTokenizer(17, 1, 8), train_vq(sets[0], options(1, quantiser="fsq"))]


def test_what_is_saved_comes_back(tmp_path, learned, sets):
    for number, tokenizer in enumerate(tokenizers(learned, sets)):
        folder = tmp_path / str(number)
        save_image_tokenizer(tokenizer, folder, {"data": "digits"})
        again = load_image_tokenizer(folder)
        assert type(again) is type(tokenizer)
        tokens = tokenizer.encode(sets[1])
        assert torch.equal(again.encode(sets[1]), tokens)
        assert torch.equal(again.decode(tokens), tokenizer.decode(tokens))
        assert (again.vocab_size, again.grid) == (tokenizer.vocab_size, tokenizer.grid)
        assert again.describe() == tokenizer.describe()
        names = {path.name for path in folder.iterdir()}
        assert names == {"config.json", "manifest.json", "model.safetensors", "tokenizer.json"}


def test_changed_files_are_refused(tmp_path, learned):
    save_image_tokenizer(learned[0], tmp_path / "t")
    path = tmp_path / "t" / "tokenizer.json"
    path.write_text(path.read_text().replace("64", "65"))
    with pytest.raises(InputError, match=r"tokenizer\.json was changed or cut short"):
        load_image_tokenizer(tmp_path / "t")
    with pytest.raises(InputError, match="does not exist"):
        load_image_tokenizer(tmp_path / "nowhere")


def test_descriptions_that_are_refused(learned):
    tokenizer = learned[0]
    description, tensors = json.loads(json.dumps(tokenizer.describe())), tokenizer.tensors()
    assert isinstance(from_description(description, tensors), VQTokenizer)
    network = description["network"]
    broken = [
        "vq",
        {},
        {"kind": 3},
        {"kind": "vqgan"},
        {"kind": "pixels"},
        {"kind": "pixels", "levels": 4, "channels": 1, "size": [8]},
        {"kind": "pixels", "levels": 4, "channels": 1, "size": [8, 8], "more": 1},
        description | {"more": 1},
        description | {"size": [8, 10**9]},
        description | {"channels": None},
        description | {"channels": 3},
        description | {"network": {}},
        description | {"network": network | {"factor": 4}},
        description | {"network": network | {"codes": 65}},
        description | {"network": network | {"codes": "64"}},
        description | {"network": network | {"levels": ["4"]}},
        description | {"network": network | {"width": 10**12}},
    ]
    for content in broken:
        with pytest.raises(InputError) as caught:
            from_description(content, tensors)
        assert "\n" not in str(caught.value)
    pixels = {"kind": "pixels", "levels": 4, "channels": 1, "size": [8, 8]}
    with pytest.raises(InputError, match="pixels have no tensors"):
        from_description(pixels, tensors)
    del tensors["quantiser.codebook"]
    with pytest.raises(InputError, match=r"its tensor quantiser\.codebook is missing"):
        from_description(description, tensors)
