"""Images from folders, tars and files of codes: read as they were written, or refused by name."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
import torch

from partita.data.images import (
    Codes,
    ImageOptions,
    Images,
    as_bytes,
    digits,
    quantise,
    read_codes,
    read_images,
    write_codes,
)
from partita.errors import InputError
from tests.support.images import (
    CLASSES,
    files,
    packed,
    picture,
    write_folder,
    write_mnist,
    write_tar,
)


def expect(images, contents, split=""):
    """Every pixel and every label, in the order of names."""
    wanted = {name: array for name, array in contents.items() if name.startswith(split)}
    stacked = np.stack(list(wanted.values())).transpose(0, 3, 1, 2)
    assert torch.equal(images.pixels, torch.from_numpy(stacked.copy()))
    labels = [CLASSES.index(name.split("/")[-2]) for name in wanted]
    assert images.labels.tolist() == labels
    assert images.classes == CLASSES
    assert images.levels == 256


# What is read ------------------------------------------------------------------------------------


def test_a_folder_by_class(tmp_path):
    contents = files()
    write_folder(tmp_path, {**contents, "README.md": b"words", "cat/.hidden.png": b"no image"})
    expect(read_images(tmp_path), contents)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_folder_with_two_parts(tmp_path, split):
    contents = files(("test/", "train/"))
    expect(read_images(write_folder(tmp_path, contents), ImageOptions(split)), contents, split)


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz"])
@pytest.mark.parametrize("prefix", ["", "./", "all/"])
def test_a_tar_is_read_as_its_folder_would_be(tmp_path, suffix, prefix):
    contents = files(("test/", "train/"))
    path = write_tar(tmp_path / f"set{suffix}", contents, prefix)
    before = sorted(tmp_path.iterdir())
    for split in ("train", "test"):
        expect(read_images(path, ImageOptions(split)), contents, split)
    assert sorted(tmp_path.iterdir()) == before


def test_mnist_and_digits_by_path(tmp_path):
    pixels, _ = write_mnist(tmp_path)
    images = read_images(tmp_path)
    assert torch.equal(images.pixels[:, 0], pixels)
    assert images.classes == ("0", "1", "2", "3", "4")
    train, test = (read_images("digits", ImageOptions(split)) for split in ("train", "test"))
    assert (len(train), len(test)) == (1500, 297)
    assert train.classes == tuple("0123456789")
    both = torch.cat([train.pixels, test.pixels]).flatten(1)
    every = digits().pixels.flatten(1)
    assert sorted(both.tolist()) == sorted(every.tolist())
    # Fixed for ever: a test image must be one for everybody.
    assert test.labels[:6].tolist() == TEST_LABELS
    assert test.labels.bincount().min() > 20


TEST_LABELS = [3, 7, 2, 6, 0, 5]


def test_sizes_and_colours(tmp_path):
    shapes = {"cat/a.png": (8, 4), "dog/b.png": (4, 8), "dog/c.png": (12, 12)}
    write_folder(tmp_path, {n: picture(i, s) for i, (n, s) in enumerate(shapes.items())})
    assert read_images(tmp_path, ImageOptions(size=4)).pixels.shape == (3, 3, 4, 4)
    grey = read_images(tmp_path, ImageOptions(size=6, color=False, levels=4))
    assert grey.pixels.shape == (3, 1, 6, 6)
    assert int(grey.pixels.max()) <= 3 == grey.levels - 1
    # The middle is kept, and what has the size already is as it was.
    wide = read_images(tmp_path, ImageOptions(size=4)).pixels[0]
    middle = torch.from_numpy(picture(0, (8, 4))[:, 2:6].transpose(2, 0, 1).copy())
    assert torch.equal(wide, middle)


def test_an_option_by_the_name_that_it_had():
    with pytest.warns(DeprecationWarning, match="colour= is color= now"):
        assert ImageOptions(colour=True) == ImageOptions(color=True)


def test_digits_in_other_sizes_and_colours():
    images = read_images("digits", ImageOptions("test", size=16, color=True))
    assert images.pixels.shape == (297, 3, 16, 16)
    assert images.levels == 256
    assert torch.equal(images.pixels[:, 0], images.pixels[:, 2])


def test_grey_files_have_one_channel(tmp_path):
    array = picture(0, colour=False)
    write_folder(tmp_path, {"cat/a.png": array, "dog/b.pgm": packed(array, "PPM")})
    images = read_images(tmp_path)
    assert torch.equal(images.pixels[0], images.pixels[1])
    assert torch.equal(images.pixels[0, 0], torch.from_numpy(array))
    assert read_images(tmp_path, ImageOptions(color=True)).pixels.shape == (2, 3, 5, 6)


def test_folders_of_classes_may_be_links(tmp_path):
    contents = files()
    elsewhere = write_folder(tmp_path / "elsewhere", contents)
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for name in CLASSES:
        (chosen / name).symlink_to(elsewhere / name)
    expect(read_images(chosen), contents)
    (chosen / "cat" / "circle").symlink_to(chosen)
    with pytest.raises(InputError, match=r"lies in no folder|laid out in two ways"):
        read_images(chosen)


# Levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 3, 8, 17, 100, 255, 256])
def test_levels_and_bytes(levels):
    every = torch.arange(256).to(torch.uint8)
    found = quantise(every, levels)
    assert found.tolist() == [x * levels // 256 for x in range(256)]
    values = torch.arange(levels).to(torch.uint8)
    middles = as_bytes(values, levels)
    assert torch.equal(quantise(middles, levels), values)
    # The middle: as many bytes of the cell below it as above it, give or take one.
    for level, middle in enumerate(middles.tolist()):
        cell = [x for x in range(256) if x * levels // 256 == level]
        assert middle == (cell[0] + cell[-1]) // 2


def test_images_with_fewer_levels():
    images = digits()
    assert torch.equal(images.quantised(17).pixels, images.pixels)
    two = images.quantised(2)
    assert two.pixels.unique().tolist() == [0, 1]
    assert two.bytes().unique().tolist() == [63, 191]
    with pytest.raises(InputError, match="the value 2 is not one of 2 levels"):
        as_bytes(torch.tensor([2], dtype=torch.uint8), 2)


# What is refused ---------------------------------------------------------------------------------


def no_class(folder):
    write_folder(folder, {"a.png": picture(0)})


def too_deep(folder):
    write_folder(folder, {"x/y/train/cat/a.png": picture(0)})


def empty_class(folder):
    write_folder(folder, files())
    (folder / "mouse").mkdir()


def class_of_the_other_part(folder):
    write_folder(folder, {"train/cat/a.png": picture(0), "test/dog/b.png": picture(0)})


def two_layouts(folder):
    write_folder(folder, {"cat/a.png": picture(0), "train/cat/b.png": picture(0)})


def sizes(folder):
    write_folder(folder, {"cat/a.png": picture(0), "cat/b.png": picture(0, (7, 7))})


def colours(folder):
    write_folder(folder, {"cat/a.png": picture(0), "cat/b.png": picture(0, colour=False)})


def cut(folder):
    write_folder(folder, {"cat/a.png": packed(picture(0, (50, 50)))[:-2000]})


def cut_jpeg(folder):
    write_folder(folder, {"cat/a.jpg": packed(picture(0, (50, 50)), "JPEG")[:-500]})


def changed(folder):
    """One bit of a sum: what is decoded is the same, and nobody can know."""
    data = bytearray(packed(picture(0)))
    data[data.index(b"IEND") - 5] ^= 1
    write_folder(folder, {"cat/a.png": bytes(data)})


def words(folder):
    write_folder(folder, {"cat/a.png": b"these are words"})


def deep_grey(folder):
    write_folder(folder, {"cat/a.png": np.zeros((4, 4), dtype=np.uint16)})


def transparent(folder):
    write_folder(folder, {"cat/a.png": np.zeros((4, 4, 4), dtype=np.uint8)})


def no_file(folder):
    write_folder(folder, files())
    (folder / "cat" / "z.png").symlink_to("/nowhere")


def another_format(folder):
    write_folder(folder, {"cat/a.png": packed(picture(0), "TIFF")})


def nothing(folder):
    write_folder(folder, {"cat/a.txt": b"words"})


REFUSED = {
    no_class: r"a\.png lies in no folder of a class",
    too_deep: r"lies in no folder of a class",
    empty_class: r"the class 'mouse' has no images",
    class_of_the_other_part: r"the class 'dog' has no images in .* \(train\)",
    two_layouts: r"is laid out in two ways: cat/a\.png and train/cat/b\.png",
    sizes: r"several kinds: cat/a\.png is 6 x 5 in colour, cat/b\.png 7 x 7",
    colours: r"several kinds: .* in colour, .* in grey; give size",
    cut: r"a\.png is damaged or no image",
    cut_jpeg: r"a\.jpg is damaged or no image",
    changed: r"a\.png is damaged or no image: broken PNG file",
    words: r"a\.png is damaged or no image: it begins as no image does$",
    deep_grey: r"has pixels of the kind 'I;16'; convert it",
    transparent: r"has transparent places",
    no_file: r"z\.png is no file",
    another_format: r"it begins as no image does$",
    nothing: r"holds no images",
}


@pytest.mark.parametrize("made", REFUSED, ids=lambda made: made.__name__)
def test_folders_that_are_refused(tmp_path, made):
    made(tmp_path)
    with pytest.raises(InputError, match=REFUSED[made]) as caught:
        read_images(tmp_path)
    assert caught.value.argument == "path"
    assert "\n" not in str(caught.value)


def test_parts_and_places_that_are_not_there(tmp_path):
    write_folder(tmp_path, files())
    with pytest.raises(
        InputError, match=r"split: .* has no images for the split 'test'; put some into"
    ):
        read_images(tmp_path, ImageOptions("test"))
    with pytest.raises(InputError, match=r"does not exist; known: digits"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is no set of images"):
        read_images(tmp_path / "cat" / "0.png")
    for options in ({"split": "valid"}, {"size": 0}, {"levels": 1}, {"levels": 257}):
        with pytest.raises(InputError) as caught:
            ImageOptions(**options)
        assert caught.value.argument in options


@pytest.mark.parametrize("name", ["../cat/a.png", "/cat/a.png", "cat/../../a.png", "..\\a.png"])
def test_names_that_lead_out_of_a_tar(tmp_path, name):
    path = write_tar(tmp_path / "set.tar", {**files(), name: picture(0)})
    with pytest.raises(InputError, match="holds a name that leads out of it"):
        read_images(path)


def test_links_and_doubles_in_a_tar(tmp_path):
    link = tarfile.TarInfo("cat/link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(InputError, match=r"cat/link\.png is a link"):
        read_images(write_tar(tmp_path / "a.tar", files(), extra=[link]))
    empty = tarfile.TarInfo("mouse")
    empty.type = tarfile.DIRTYPE
    with pytest.raises(InputError, match="the class 'mouse' has no images"):
        read_images(write_tar(tmp_path / "b.tar", files(), extra=[empty]))
    double = tarfile.TarInfo("cat/0.png")
    with pytest.raises(InputError, match=r"holds cat/0\.png twice"):
        read_images(write_tar(tmp_path / "c.tar", files(), extra=[double]))


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz"])
def test_tars_that_are_cut_anywhere(tmp_path, suffix):
    whole = write_tar(tmp_path / f"set{suffix}", files()).read_bytes()
    path = tmp_path / f"cut{suffix}"
    # Between two files and inside of one: names take 512 bytes, these images less.
    # The last 8,000 bytes of a plain tar are zeros, of which 1,024 are enough.
    last = len(whole) - (8000 if suffix == ".tar" else 0)
    for length in {*range(0, last, 128), len(whole) // 4, last - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is damaged or not what its name says"):
            read_images(path)
    path.write_bytes(b"words" * 1000)
    with pytest.raises(InputError, match=r"is damaged or not what its name says"):
        read_images(path)


# Codes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_codes_come_back(tmp_path, suffix):
    torch.manual_seed(0)
    codes = Codes(torch.randint(0, 50, (7, 3, 4)), torch.arange(7), 64)
    path = tmp_path / f"codes{suffix}"
    write_codes(path, codes)
    again = read_codes(path)
    assert torch.equal(again.codes, codes.codes)
    assert torch.equal(again.labels, codes.labels)
    assert (again.vocab_size, again.grid) == (64, (3, 4))
    assert again.tokens.shape == (7, 12)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="is damaged, or no file of codes"):
        read_codes(path)


def test_codes_of_others(tmp_path):
    path = tmp_path / "codes.npz"
    np.savez(path, codes=np.arange(8, dtype=np.uint16).reshape(2, 2, 2), labels=np.zeros(2, int))
    assert read_codes(path).vocab_size == 8
    broken = {
        "has no 'labels'": {"codes": np.zeros((2, 2, 2), int)},
        "'codes' is float64": {"codes": np.zeros((2, 2, 2)), "labels": np.zeros(2, int)},
        "'codes' is int64 .2, 4.": {"codes": np.zeros((2, 4), int), "labels": np.zeros(2, int)},
        "2 images have 3 labels": {"codes": np.zeros((2, 2, 2), int), "labels": np.zeros(3, int)},
        "the codes are -1 to -1": {"codes": -np.ones((2, 2, 2), int), "labels": np.zeros(2, int)},
        "is damaged, or no file": {"codes": np.array([object()]), "labels": np.zeros(2, int)},
    }
    for problem, arrays in broken.items():
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=problem):
            read_codes(path)
    with pytest.raises(InputError, match="is neither of"):
        read_codes(tmp_path / "codes.pt")
    with pytest.raises(InputError, match=r"cannot be read"):
        read_codes(tmp_path / "nowhere.npz")


def test_images_can_be_selected():
    images = digits()
    some = images.select(torch.tensor([3, 1]))
    assert isinstance(some, Images)
    assert torch.equal(some.pixels[0], images.pixels[3])
    assert some.classes == images.classes
