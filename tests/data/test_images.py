"""Images with labels: what is read is what was written, and damaged files are named."""

from __future__ import annotations

import struct

import pytest
import torch

from partita.data.images import digits, mnist, read_idx
from partita.errors import InputError
from tests.support.images import idx, write_mnist


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_as_it_was_written(tmp_path, packed):
    pixels, shown = write_mnist(tmp_path, packed=packed)
    images = mnist(tmp_path)
    assert torch.equal(images.pixels[:, 0], pixels)
    assert torch.equal(images.labels, shown.long())
    scaled = images.scaled()
    torch.testing.assert_close((scaled + 1) * 127.5, images.pixels.float())
    assert float(scaled.abs().max()) <= 1


def test_digits_are_there():
    images = digits()
    assert images.pixels.shape == (1797, 1, 8, 8)
    assert int(images.pixels.max()) == images.levels - 1 == 16
    assert torch.equal(images.labels.unique(), torch.arange(10))
    assert float(images.scaled().min()) == -1
    assert float(images.scaled().max()) == 1


BROKEN = {
    "no IDX file": b"not an image",
    "empty": b"",
    "of floats": bytes([0, 0, 13, 1]) + struct.pack(">I", 2) + bytes(8),
    "cut": idx(torch.zeros(2, 3, 3, dtype=torch.uint8))[:-1],
    "too long": idx(torch.zeros(2, dtype=torch.uint8)) + b"x",
    "no sizes": bytes([0, 0, 8, 3]) + b"\x00",
    "beyond all measure": bytes([0, 0, 8, 3]) + b"\xff" * 12,
}


@pytest.mark.parametrize("kind", list(BROKEN))
def test_damaged_files_are_named(tmp_path, kind):
    path = tmp_path / "images"
    path.write_bytes(BROKEN[kind])
    with pytest.raises(InputError, match=r"images is damaged or not what its name says"):
        read_idx(path)


def test_folders_that_hold_no_mnist(tmp_path):
    with pytest.raises(InputError, match=r"has no train-images-idx3-ubyte\(\.gz\)"):
        mnist(tmp_path)
    write_mnist(tmp_path, labels=4)
    with pytest.raises(InputError, match=r"5, 4, 3.* pixels and .4. labels"):
        mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="damaged"):
        mnist(tmp_path)
