"""Images on a bad day: flipped bits, files that unpack to far more than they are, pipes."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from contextlib import suppress
from zlib import crc32

import numpy as np
import pytest
import torch

from partita.data.images import ImageOptions, idx, mnist, read_codes, read_idx, read_images, sources
from partita.data.images import codes as codes_module
from partita.errors import InputError
from tests.support.images import files, packed, picture, write_folder, write_mnist, write_tar

# Tars --------------------------------------------------------------------------------------------


def test_flipped_bits_of_a_header_in_a_tar_are_found(tmp_path):
    """One bit of one header may cost all images behind it: it is an error, or changes nothing."""
    path = write_tar(tmp_path / "set.tar", files())
    intact, whole = read_images(path), path.read_bytes()
    with tarfile.open(path) as archive:
        header = archive.getmembers()[2].offset
    unchanged = 0
    for place in range(0, 512, 4):
        damaged = bytearray(whole)
        damaged[header + place] ^= 1 << (place // 4 % 8)
        path.write_bytes(damaged)
        with suppress(InputError):
            assert torch.equal(read_images(path).pixels, intact.pixels)
            unchanged += 1
    assert unchanged < 3  # what stands beside the header's checksum, which is a number


def test_flipped_bits_of_a_long_name_lose_no_image(tmp_path):
    """Python's own format keeps long names in records without a checksum."""
    path, long = tmp_path / "set.tar", "x" * 120
    images = {
        f"{name.rpartition('/')[0]}/{long}{n}.png": data
        for n, (name, data) in enumerate(files().items())
    }
    write_tar(path, images)
    whole, seen = path.read_bytes(), {"same": 0, "refused": 0, "renamed": 0}
    intact = read_images(path)
    start = whole.index(long.encode()) - 20
    for place in range(start, start + 160):
        for bit in (0, 3, 5):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                found = read_images(path)
            except InputError:
                seen["refused"] += 1
                continue
            assert len(found.pixels) == len(intact.pixels)
            assert found.classes == intact.classes
            renamed = not torch.equal(found.pixels, intact.pixels)
            seen["renamed" if renamed else "same"] += 1
    assert seen["refused"] > 200, seen


def test_long_names_of_any_letters_are_read(tmp_path):
    images = {
        f"{name.rpartition('/')[0]}/{'é' * 60}{n}.png": data
        for n, (name, data) in enumerate(files().items())
    }
    path = write_tar(tmp_path / "set.tar", images)
    assert len(read_images(path).pixels) == len(images)


def test_a_damaged_header_is_named_with_its_place(tmp_path):
    path = write_tar(tmp_path / "set.tar", files())
    whole = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        header = archive.getmembers()[1].offset
    whole[header] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match=rf"set\.tar .* byte {header:,} of the tar is a damaged h"):
        read_images(path)


def test_a_second_tar_behind_the_first_is_not_left_out(tmp_path):
    first, second = (write_tar(tmp_path / f"{n}.tar", files()) for n in "ab")
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(InputError, match="something behind the end"):
        read_images(first)


# What unpacks to more than it is -----------------------------------------------------------------


def sized(*sizes):
    """The head of an IDX file of bytes."""
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)


class Counted(gzip.GzipFile):
    """A reader that counts what it unpacks."""

    unpacked = 0

    def readinto(self, buffer):
        count = super().readinto(buffer)
        Counted.unpacked += count
        return count

    def read(self, size=-1):
        data = super().read(size)
        Counted.unpacked += len(data)
        return data


@pytest.mark.parametrize(
    ("declared", "word"),
    [
        ((1 << 24,), "says that it holds 16,777,216 bytes, of 65,536 at most"),
        ((100,), "bytes do not fit the sizes"),
    ],
)
def test_an_idx_file_is_not_unpacked_beyond_what_it_may_hold(tmp_path, monkeypatch, declared, word):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(sized(*declared) + bytes(1 << 24)))
    monkeypatch.setattr(idx, "LARGEST", 1 << 16)
    monkeypatch.setattr(idx.gzip, "GzipFile", Counted)
    Counted.unpacked = 0
    with pytest.raises(InputError, match=word):
        read_idx(path)
    assert Counted.unpacked < 1 << 10


def test_an_idx_file_that_lacks_what_it_says_is_no_memory_that_is_taken(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(sized(1 << 15, 1 << 8, 1 << 8)))
    with pytest.raises(InputError, match="bytes do not fit the sizes"):
        read_idx(path)
    path.write_bytes(gzip.compress(sized(1 << 16, 1 << 8, 1 << 8)))
    with pytest.raises(InputError, match="holds 4,294,967,296 bytes, of 2,147,483,648 at most"):
        read_idx(path)


def test_codes_that_unpack_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "codes.npz"
    np.savez_compressed(path, codes=np.zeros((64, 64, 64), np.uint8), labels=np.zeros(64, int))
    assert len(read_codes(path).codes) == 64
    monkeypatch.setattr(codes_module, "LARGEST", 1 << 19)  # less than the same in 64 bits
    with pytest.raises(InputError, match=r"npz holds 2,097,152 bytes of numbers, of 524,288 at m"):
        read_codes(path)
    monkeypatch.setattr(codes_module, "LARGEST", 1 << 17)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)  # it is not even unpacked
    with pytest.raises(InputError, match=r"npz holds 262,912 bytes of numbers, of 131,072 at most"):
        read_codes(path)


def test_a_flipped_bit_anywhere_in_a_png_is_found(tmp_path):
    """Its last part too: what was cut off behind it, in a tar of zeros say, may be more images."""
    write_folder(tmp_path, {"cat/a.png": packed(picture(0)), "dog/b.png": packed(picture(1))})
    path = tmp_path / "cat" / "a.png"
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.png is damaged or no image"):
            read_images(tmp_path)


def test_a_small_picture_of_a_gigabyte_is_refused(tmp_path):
    parts = (b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0), b"IDATx", b"IEND")
    chunks = (struct.pack(">I", len(p) - 4) + p + struct.pack(">I", crc32(p)) for p in parts)
    write_folder(tmp_path, {"cat/bomb.png": b"\x89PNG\r\n\x1a\n" + b"".join(chunks)})
    with pytest.raises(InputError, match=r"bomb\.png is damaged or no image: .* bomb"):
        read_images(tmp_path, ImageOptions(size=8))


def test_pictures_that_the_memory_does_not_hold_are_refused_before_all_are_read(
    tmp_path, monkeypatch
):
    write_folder(tmp_path, {**files(), "dog/z.png": b"no picture"})
    monkeypatch.setattr(sources, "machine_memory", lambda: 4 * 6 * 5 * 3)
    with pytest.raises(InputError, match="more pixels than half of this machine's memory"):
        read_images(tmp_path)


# Pipes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz", "codes.npz", "codes.safetensors"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} is no file"):
        (read_codes if name.startswith("codes") else read_images)(tmp_path / name)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    os.mkfifo(tmp_path / "train-images-idx3-ubyte.gz")
    with pytest.raises(InputError, match=r"ubyte\.gz is no file"):
        mnist(tmp_path)
    write_folder(tmp_path / "pictures", {"cat/a.png": packed(picture(0))})
    os.mkfifo(tmp_path / "pictures" / "cat" / "b.png")
    with pytest.raises(InputError, match=r"b\.png is no file"):
        read_images(tmp_path / "pictures")
