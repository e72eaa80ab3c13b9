"""Images by the same commands as text: train, sample, infill, eval, vq; and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import partita
from partita.commands import main
from partita.data.image_data import ImageSet, prepare_images
from partita.data.images import ImageOptions, read_images
from partita.data.whole_rows import Whole
from partita.errors import InputError
from partita.files import format
from partita.models import checkpoints
from partita.models.find import find
from partita.models.image_model import ImageModel

SIZES = "--network.width 32 --network.depth 2 --network.heads 2"
GRID = "--network.length 64 --network.grid 8"
PACE = "--training.steps 8 --training.batch_size 16 --run.validate_every 4 --run.previews 4"
TRAIN = f"train digits --tokenizer.name pixels {SIZES} {GRID} {PACE} --run.device cpu"


def do(words):
    """A verb in this process; its exit code."""
    return main(words.split())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models of digits: a PGM and a MaskGIT with classes, an MDLM over codes."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        labelled = f"{TRAIN} --network.classes 10"
        assert do(f"{labelled} --method.name pgm --network.registers 1 --out pgm") == 0
        assert do(f"{labelled} --method.name maskgit --out maskgit") == 0
        vq = "vq digits vq --vq.steps 20 --vq.network.width 16 --vq.network.codes 32"
        assert do(f"{vq} --vq.device cpu") == 0
        codes = TRAIN.replace("pixels", "vq").replace(GRID, "--network.length 16 --network.grid 4")
        assert do(f"{codes} --method.name mdlm --out codes") == 0
    return folder


@pytest.fixture(scope="module")
def judge(place):
    """A classifier that the first evaluation trains and leaves for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert do("eval pgm digits --limit 2 --samples 2 --steps 2 --classifier judge") == 0
    return place / "judge"


@pytest.mark.parametrize("name", ["pgm", "maskgit", "codes"])
def test_a_run_leaves_pictures_and_a_model_that_draws(here, name):
    assert sorted(path.name for path in (here / name / "samples").iterdir()) == [
        "step-00000004.png",
        "step-00000008.png",
    ]
    model = partita.load(name, device="cpu")
    assert isinstance(model, ImageModel)
    pixels = model.sample(3, steps=8, seed=1)
    assert (pixels.shape, pixels.dtype) == ((3, 1, 8, 8), torch.uint8)
    assert torch.equal(pixels[1:], model.sample(2, steps=8, seed=1, first=1))


@pytest.mark.usefixtures("here")
def test_a_model_of_other_data_is_refused_from_python_too(tmp_path):
    model = partita.ImageModel.from_pretrained("pgm", device="cpu")
    assert isinstance(model, ImageModel)
    with pytest.raises(InputError, match="pgm is a model of images; partita sample, infill"):
        partita.TextModel.from_pretrained("pgm")
    with pytest.raises(InputError, match="model: is a model of images, which scores no text"):
        model.score("a text")
    sizes = partita.TransformerOptions(length=8, width=8, depth=1, heads=1)
    recipe = partita.Recipe(network=sizes)
    text = partita.TextModel(recipe.method.build(sizes, 256), partita.ByteTokenizer(), recipe)
    text.save(tmp_path / "text")
    with pytest.raises(InputError, match=r"text is a model of text; partita\.load takes models"):
        partita.ImageModel.from_pretrained(tmp_path / "text")


def test_rows_are_images_with_their_classes(tmp_path):
    images = ImageSet("digits", ImageOptions(), valid=0.1)
    prepared = prepare_images(images, tmp_path, "pixels", None)
    data = read_images("digits")
    assert prepared.train.classes == list("0123456789")
    assert len(prepared.train.ends) + len(prepared.valid.ends) == len(data)
    assert len(prepared.valid.ends) == pytest.approx(0.1 * len(data), abs=1)
    rows = Whole(prepared.train, 64)
    tokens, valid, ends = rows.read(rows.spans(torch.tensor([0, 5]), torch.zeros(2), 0))
    assert (valid, ends) == (None, None)
    where = [int((data.pixels.flatten(1) == row).all(1).nonzero()[0]) for row in tokens]
    assert prepared.train.labels[[0, 5]].tolist() == data.labels[where].tolist()
    again = prepare_images(images, tmp_path, "pixels", None)
    assert (again.folder, again.fresh) == (prepared.folder, False)
    fewer = prepare_images(images, tmp_path, "pixels", 4)
    assert fewer.folder != prepared.folder
    assert fewer.tokenizer.vocab_size == 4
    with pytest.raises(InputError, match=r"network\.length: is 49, but an image has 64 tokens"):
        Whole(prepared.train, 49)


@pytest.mark.parametrize(
    "kind", ["unet --network.heads 1", "patches --network.options.levels_head logistic"]
)
def test_networks_of_pixels(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    assert do(f"{TRAIN} --method.name md4 --network.kind {kind} --out md4 --run.previews 0") == 0
    assert partita.load("md4", device="cpu").sample(2, steps=2).shape == (2, 1, 8, 8)
    assert do("eval md4 digits --limit 8 --samples 0 --replicates 2") == 0


def test_a_grid_of_all_classes_and_a_film(here, capsys):
    words = (
        "sample pgm --label each --count 2 --guidance 1.5 --steps 4 --out grid.png --gif film.gif"
    )
    assert do(f"{words} --gif film.gif") == 0
    assert "grid.png: 20 images" in capsys.readouterr().out
    assert (here / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert (here / "film.gif").read_bytes().startswith(b"GIF89a")
    assert do("sample maskgit --label 3 --sampler halton --steps 4 --json --out x.png") == 0
    assert json.loads(capsys.readouterr().out) == {"out": "x.png", "gif": None, "images": 1}


def test_what_is_known_of_a_picture_stays(here):
    model, data = partita.load("maskgit", device="cpu"), read_images("digits")
    known = torch.zeros(8, 8, dtype=torch.bool)
    known[:, :4] = True
    some = data.select(torch.arange(3))
    filled = model.infill(some, known, label=2, steps=4)
    assert torch.equal(filled[..., :4], some.bytes()[..., :4])
    assert not torch.equal(filled, some.bytes())
    assert do("infill maskgit 5 --hide middle --count 3 --out filled.png") == 0
    assert (here / "filled.png").exists()


@pytest.mark.usefixtures("here")
def test_evaluation_says_bits_and_what_a_classifier_thinks(judge, capsys):
    words = "eval pgm digits --limit 40 --samples 20 --steps 4 --classifier judge --json"
    assert do(words) == 0
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    likelihood, samples = results["likelihood"], results["samples"]
    assert likelihood["images"] == 40
    assert likelihood["given_the_class"] is True
    assert 0 < likelihood["independent"] < likelihood["bits_per_dimension"] < 6
    assert likelihood["dimensions"] == "pixels"
    assert samples["classifier"] == "classifier trained on digits"
    assert samples["classifier_accuracy"] >= 0.9
    assert 0 <= samples["accuracy"] <= 1
    assert samples["frechet_data"] < samples["frechet"]
    assert checkpoints.is_model(judge)
    assert do("eval codes --samples 10 --classifier judge") == 0


def test_a_model_over_codes_carries_its_tokenizer(here, tmp_path):
    model = partita.load("codes", device="cpu")
    model.save(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert format.TOKENIZER_TENSORS in names
    again = partita.load(tmp_path / "saved", device="cpu")
    assert torch.equal(model.sample(2, steps=2), again.sample(2, steps=2))
    path = tmp_path / "saved" / format.TOKENIZER_TENSORS
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match=r"tokenizer\.safetensors"):
        partita.load(tmp_path / "saved", device="cpu")
    path.unlink()
    with pytest.raises(InputError, match=r"tokenizer\.safetensors"):
        partita.load(tmp_path / "saved", device="cpu")
    assert format.TOKENIZER_TENSORS in format.verify(find(here / "codes"))


@pytest.mark.usefixtures("here")
def test_images_can_be_prepared_beforehand(tmp_path, capsys):
    words = f"prepare digits --tokenizer.name pixels --data.cache {tmp_path}"
    assert do(words) == 0
    assert "(1,425 images)" in capsys.readouterr().out
    assert do(words) == 0
    assert "Nothing changed" in capsys.readouterr().out


@pytest.mark.usefixtures("here", "judge")
def test_parts_say_what_they_are(capsys):
    for name, kind in (("vq", "tokenizer"), ("judge", "classifier")):
        capsys.readouterr()
        assert do(f"info {name} --json") == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["kind"], facts["parameters"] > 0) == (f"partita image {kind}", True)
        assert do(f"info {name}") == 0
        assert f"{name}: partita image {kind}, " in capsys.readouterr().out


def test_classes_are_matched_by_their_names(here):
    """Numbers of one set mean nothing in another."""
    model, data = partita.load(here / "pgm", device="cpu"), read_images("digits")
    swapped = replace(data, classes=tuple("1032456789"))
    assert torch.equal(model.labels_of(data), data.labels)
    expected = torch.tensor([1, 0, 3, 2, 4, 5, 6, 7, 8, 9])[data.labels]
    assert torch.equal(model.labels_of(swapped), expected)
    with pytest.raises(InputError, match="unknown class 'ten'"):
        model.labels_of(replace(data, classes=(*"012345678", "ten")))


def test_an_exported_model_draws_the_same(here, tmp_path):
    assert do(f"export codes {tmp_path}/exported") == 0
    again = partita.load(tmp_path / "exported", device="cpu")
    before = partita.load(here / "codes", device="cpu")
    assert torch.equal(again.sample(2, steps=2), before.sample(2, steps=2))


def test_the_same_command_again_goes_on(here):
    before = (find(here / "pgm") / "model.safetensors").read_bytes()
    again = f"{TRAIN} --network.classes 10 --method.name pgm --network.registers 1 --out pgm"
    assert do(again) == 0
    assert (find(here / "pgm") / "model.safetensors").read_bytes() == before


def test_students_of_models_of_images(here):
    words = f"distill --teacher pgm --distillation.steps 8 --out sdtt {PACE} --run.device cpu"
    assert do(words) == 0
    assert partita.load(here / "sdtt", device="cpu").recipe.sampling.steps == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            f"{TRAIN} --network.length 8",
            "network.length: is 8, but an image has 8 x 8 tokens; give ",
        ),
        (f"{TRAIN} --network.classes 3", "network.classes: is 3, but the images have 10"),
        (f"{TRAIN} --network.grid 4", "network.grid: is 4, but an image has 8 columns of tokens"),
        (f"{TRAIN} --data.label folder", "data.label: is for text; the classes of images are "),
        (f"{TRAIN} --data.rows packed", "data.rows: images are whole rows; leave it out"),
        (
            "train digits",
            "tokenizer.name: bytes makes no tokens of images; give pixels, or the folder",
        ),
        ("sample pgm --gif a.png", "--gif: a.png would hold a GIF, and its name says otherwise; "),
        ("sample pgm --out a.jpg", "--out: a.jpg would hold a PNG, and its name says otherwise; "),
        ("infill pgm 5 --hide top --out a", "--out: a would hold a PNG, and its name says other"),
        ("prepare nowhere --tokenizer.name pixels", "data.path: nowhere does not exist; known: "),
        ("eval pgm digits --samples 1", "--samples: one image has no spread; give 0, or 2 and "),
        (f"{TRAIN} --tokenizer.levels 1", "tokenizer.levels: must be at least 2, got 1"),
        (TRAIN.replace("digits", "nowhere"), "data.path: nowhere does not exist; name a folder"),
        ("sample pgm --label 10", "--label: unknown class '10'; known: 0, 1, 2, 3"),
        ("sample codes --label each", "--label: the model knows no classes; leave it out"),
        (
            "sample pgm --guidance 1",
            "--label: guidance pulls towards a class label, and none ",
        ),
        ("sample pgm --prompt x", "--prompt: is for text, and this is a model of images"),
        ("sample pgm --out pgm", "--out: pgm is a folder; name a file"),
        ("infill pgm 5", "--hide: must be given; say which part: left, right, top, bottom, middle"),
        ("infill pgm 5 --hide ear", "--hide: unknown name 'ear'; known: left, right, top, bottom"),
        ("infill pgm 5000 --hide top", "text: there is no test image 5000; 0 to 296 exist"),
        ("infill pgm nowhere.png --hide top", "text: nowhere.png"),
        ("score pgm abc", "model: pgm is a model of images; partita sample, infill and eval know"),
        ("eval pgm digits --judge pgm", "--judge: is for text, and this is a model of images"),
        ("eval pgm nowhere", "file: nowhere does not exist"),
        ("vq digits vq", "out: vq exists already; choose another folder"),
        ("vq nowhere new", "images: nowhere does not exist"),
        ("vq digits new --vq.network.factor 3", "vq.network.factor: must be one of 2, 4, 8, got 3"),
        ("vq digits new --vq.steps 0", "vq.steps: must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_one_message(here, capsys, words, message):
    names = {path.name for path in here.iterdir()}
    assert do(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"partita: {message}"), err
    assert err.count("\n") == 1
    assert {path.name for path in here.iterdir()} == names
