"""Fréchet distances against closed forms, classifiers that learn, and pictures."""

from __future__ import annotations

import io
import json
import sys
from types import ModuleType

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from partita.data.images import ImageOptions, read_images
from partita.data.images.pictures import grid_png, tiled, unmasking_gif
from partita.errors import InputError
from partita.evaluation.classifier import (
    ClassifierOptions,
    ImageClassifier,
    shifted,
    train_classifier,
)
from partita.evaluation.frechet import (
    FeatureNetwork,
    Inception,
    Moments,
    frechet,
    frechet_distance,
    symmetric_root,
)
from partita.files import format


def gaussian(seed, size, rank=None):
    """Random moments of some rank."""
    draw = torch.Generator().manual_seed(seed)
    factor = torch.randn(size, rank or size, generator=draw, dtype=torch.float64)
    mean = torch.randn(size, generator=draw, dtype=torch.float64)
    return Moments(mean, factor @ factor.T, 100)


# The distance ------------------------------------------------------------------------------------


def test_one_dimension():
    """(m - n)^2 + (s - t)^2 for normal laws with standard deviations s and t."""
    one = Moments(torch.tensor([1.0]).double(), torch.tensor([[4.0]]).double(), 9)
    two = Moments(torch.tensor([-2.0]).double(), torch.tensor([[25.0]]).double(), 9)
    assert frechet(one, two) == pytest.approx(9 + 9, rel=1e-14)


def test_covariances_that_commute():
    """In a common basis the distance is a sum over coordinates."""
    basis, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
    basis = basis.double()
    basis, _ = torch.linalg.qr(basis)
    first, second = torch.arange(6.0).double(), torch.tensor([9.0, 0, 1, 1e-6, 4, 2]).double()
    made = [Moments(torch.zeros(6).double(), (basis * v) @ basis.T, 9) for v in (first, second)]
    wanted = float((first.sqrt() - second.sqrt()).square().sum())
    assert frechet(*made) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("size", [2, 16, 64])
def test_against_the_general_matrix_root(size):
    one, two = gaussian(1, size), gaussian(2, size)
    root = scipy.linalg.sqrtm((one.covariance @ two.covariance).numpy()).real
    traces = float(one.covariance.trace() + two.covariance.trace())
    wanted = float((one.mean - two.mean).square().sum()) + traces - 2 * float(np.trace(root))
    assert frechet(one, two) == pytest.approx(wanted, rel=1e-8)
    assert frechet(two, one) == pytest.approx(wanted, rel=1e-8)


def test_few_images_and_equal_sets():
    """Covariances without full rank, for which the general root loses its digits."""
    for rank in (1, 5, 30):
        same = gaussian(3, 32, rank)
        assert frechet(same, same) < 1e-10 * float(same.covariance.trace())
    # Laws on lines at right angles: nothing in common, the traces add up.
    nowhere = torch.zeros(2).double()
    east, north = (Moments(nowhere, torch.diag(d).double(), 2) for d in torch.eye(2))
    assert frechet(east, north) == pytest.approx(2, rel=1e-14)
    root = symmetric_root(gaussian(3, 32, 5).covariance)
    torch.testing.assert_close(root @ root, gaussian(3, 32, 5).covariance)


def test_moments_are_those_of_numpy():
    features = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    found = Moments.of(features)
    np.testing.assert_allclose(found.covariance, np.cov(features.double().numpy().T), rtol=1e-12)
    np.testing.assert_allclose(found.mean, features.double().numpy().mean(0), rtol=1e-12)
    # Shifted and scaled: |shift|^2 + (scale - 1)^2 tr.
    moved = Moments.of(features.double() * 3 + 2)
    gap = (found.mean * 3 + 2 - found.mean).square().sum()
    wanted = float(gap + 4 * found.covariance.trace())
    assert frechet(found, moved) == pytest.approx(wanted, rel=1e-12)


def test_features_that_are_refused():
    with pytest.raises(InputError, match="features: there are 1; two are the least"):
        Moments.of(torch.zeros(1, 3))
    with pytest.raises(InputError, match="features: some are not finite"):
        Moments.of(torch.full((3, 3), torch.nan))
    with pytest.raises(InputError, match="features: have 2 and 3 numbers"):
        frechet(gaussian(0, 2), gaussian(0, 3))


# The classifier ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets():
    return [read_images("digits", ImageOptions(split)) for split in ("train", "test")]


@pytest.fixture(scope="module")
def trained(sets):
    return train_classifier(sets[0], "digits", ClassifierOptions(steps=250))


def test_a_classifier_learns_digits(sets, trained):
    assert trained.accuracy(sets[1]) >= 0.97
    assert trained.name == "classifier trained on digits"
    assert trained.classes == tuple("0123456789")
    assert isinstance(trained, FeatureNetwork)
    features = trained.features(sets[1])
    assert features.shape == (297, trained.dimension)
    logits = trained.network.head(features)
    torch.testing.assert_close(logits, trained.logits(sets[1]))
    wrong = (sets[1].labels + 1) % 10
    assert trained.accuracy(sets[1].bytes(), wrong) < 0.03


def test_a_saved_classifier_is_the_same(tmp_path, sets, trained):
    trained.save(tmp_path / "classifier", {"accuracy": 0.98})
    again = ImageClassifier.load(tmp_path / "classifier")
    assert torch.equal(again.features(sets[1]), trained.features(sets[1]))
    assert (again.name, again.classes) == (trained.name, trained.classes)
    path = tmp_path / "classifier" / "config.json"
    path.write_text(path.read_text().replace("64", "65"))
    with pytest.raises(InputError, match=r"config\.json was changed"):
        ImageClassifier.load(tmp_path / "classifier")


def test_damaged_shapes_of_classifiers(tmp_path, trained):
    """Files whose checksums are right, but which say something else."""
    trained.save(tmp_path / "good")
    config = json.loads((tmp_path / "good" / "config.json").read_text())
    weights = format.read_tensors(tmp_path / "good" / "model.safetensors")
    shape = config["classifier"]
    misshapen = [shape | {"width": "16"}, shape | {"dimension": 65}, shape | {"size": 8}]
    for changed in (None, {}, *misshapen):
        contents = {"config.json": config | {"classifier": changed}, "model.safetensors": weights}
        format.write(tmp_path / "bad", contents, kind=format.IMAGE_CLASSIFIER)
        with pytest.raises(InputError, match="model: "):
            ImageClassifier.load(tmp_path / "bad")
    contents = {"config.json": config, "model.safetensors": weights}
    with pytest.raises(InputError, match="holds a partita image classifier, which a partita model"):
        format.write(tmp_path / "bad", contents)
    format.write(tmp_path / "model", contents)
    with pytest.raises(InputError, match="is not of a partita image classifier"):
        ImageClassifier.load(tmp_path / "model")


def test_training_repeats(sets):
    chosen = ClassifierOptions(steps=3, width=8)
    seen = []
    one = train_classifier(sets[0], "digits", chosen, seen.append)
    two = train_classifier(sets[0], "digits", chosen)
    assert torch.equal(one.logits(sets[1]), two.logits(sets[1]))
    assert [progress.step for progress in seen] == [3]


def test_images_are_shifted_by_whole_pixels():
    pixels = torch.zeros(200, 1, 5, 5, dtype=torch.uint8)
    pixels[:, :, 2, 2] = 7
    moved = shifted(pixels, 1, seed=0, step=4)
    places = moved.flatten(1).argmax(1)
    assert bool((moved.flatten(1).sum(1) == 7).all())
    assert places.unique().tolist() == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    assert torch.equal(shifted(pixels, 0, seed=0, step=0), pixels)
    assert torch.equal(moved, shifted(pixels, 1, seed=0, step=4))


def test_what_a_classifier_refuses(sets, trained):
    with pytest.raises(InputError, match="labels: are missing"):
        trained.accuracy(sets[1].bytes())
    with pytest.raises(InputError, match="297 images have 3 labels"):
        trained.accuracy(sets[1], torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match=r"of \[3, 8, 8\]"):
        trained.features(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    for name, value in {"shift": -1, "smoothing": 1.0, "steps": 0}.items():
        with pytest.raises(InputError) as caught:
            ClassifierOptions(**{name: value})
        assert caught.value.argument == name


def test_distances_grow_with_damage(sets, trained):
    train, test = sets
    halves = train.select(torch.arange(0, 750)), train.select(torch.arange(750, 1500))
    draw = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 40, test.pixels.shape, generator=draw)
    noisy = (test.bytes().long() + noise).clamp(max=255).to(torch.uint8)
    garbage = torch.randint(0, 256, test.pixels.shape, generator=draw, dtype=torch.uint8)
    same = frechet_distance(trained, *halves)
    distances = [frechet_distance(trained, train, x).distance for x in (test, noisy, garbage)]
    assert same.distance < distances[1] < distances[2]
    assert distances[0] < distances[1]
    assert same.counts == (750, 750)
    assert same.features == "classifier trained on digits"


# Inception ---------------------------------------------------------------------------------------


def test_inception_is_used_only_if_it_is_there(tmp_path, monkeypatch):
    name = "torch_fidelity.feature_extractor_inceptionv3"
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=r"needs the package torch_fidelity; .*partita\[fid\]"):
        Inception()

    class Fake(torch.nn.Module):
        def __init__(self, _name, layers, path):
            super().__init__()
            assert layers == ["2048"]
            if path.endswith("bad.pth"):
                raise RuntimeError("no\nweights")

        def forward(self, x):
            assert x.dtype == torch.uint8
            assert x.shape[1] == 3
            return (x.float().mean((2, 3)).repeat(1, 683)[:, :2048],)

    module = ModuleType(name)
    module.FeatureExtractorInceptionV3 = Fake
    monkeypatch.setitem(sys.modules, "torch_fidelity", ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match="is not there; fetch"):
        Inception()
    for file in ("good.pth", "bad.pth"):
        (tmp_path / file).touch()
    with pytest.raises(InputError, match=r"bad\.pth holds no Inception: no weights"):
        Inception(path=tmp_path / "bad.pth")
    network = Inception(tmp_path / "good.pth", device="cpu")
    grey = torch.randint(0, 256, (70, 1, 4, 4), dtype=torch.uint8)
    assert network.features(grey).shape == (70, 2048)
    assert network.name.startswith("inception")


# Pictures ----------------------------------------------------------------------------------------


def test_a_grid_shows_every_pixel(tmp_path):
    pixels = torch.randint(0, 256, (5, 3, 4, 6), dtype=torch.uint8)
    path = tmp_path / "new" / "grid.png"
    grid_png(pixels, 3, path, scale=2)
    with Image.open(path) as stored:
        picture = torch.from_numpy(np.array(stored)).permute(2, 0, 1)
    assert picture.shape == (3, 2 * (1 + 2 * 5), 2 * (1 + 3 * 7))
    assert torch.equal(picture[:, ::2, ::2], tiled(pixels, 3))
    for index in range(5):
        row, column = divmod(index, 3)
        top, left = 1 + row * 5, 1 + column * 7
        shown = picture[:, ::2, ::2][:, top : top + 4, left : left + 6]
        assert torch.equal(shown, pixels[index])
    assert [entry.name for entry in path.parent.iterdir()] == ["grid.png"]
    before = path.read_bytes()
    grid_png(pixels, 3, path, scale=2)
    assert path.read_bytes() == before


def test_a_moving_picture(tmp_path):
    frames = [torch.full((3, 1, 4, 4), 40 * i, dtype=torch.uint8) for i in range(4)]
    unmasking_gif(frames, tmp_path / "a.gif", columns=2, scale=3, milliseconds=100, hold=1000)
    with Image.open(io.BytesIO((tmp_path / "a.gif").read_bytes())) as moving:
        assert moving.n_frames == 4
        assert moving.size == (33, 33)
        moving.seek(2)
        assert moving.convert("L").getpixel((5, 5)) == 80
    unmasking_gif(frames[:1], tmp_path / "b.gif")


def test_pictures_that_are_refused(tmp_path):
    pixels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    for arguments in ((pixels[:0], 2), (pixels, 0), (pixels.expand(-1, 2, -1, -1), 2)):
        with pytest.raises(InputError):
            grid_png(*arguments, tmp_path / "a.png")
    with pytest.raises(InputError, match="scale"):
        grid_png(pixels, 2, tmp_path / "a.png", scale=0)
    with pytest.raises(InputError, match=r"path: .* is a folder"):
        grid_png(pixels, 2, tmp_path)
    with pytest.raises(InputError, match="frames: there are none"):
        unmasking_gif([], tmp_path / "a.gif")
    with pytest.raises(InputError, match="frames: have several shapes"):
        unmasking_gif([pixels, pixels[:1]], tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())
