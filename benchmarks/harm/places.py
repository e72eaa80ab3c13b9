"""Folders with sound input of every kind, from which each case gets a copy.

They are small, so that random damage hits what matters, and the same on every call.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shlex
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import zstandard
from PIL import Image

from harm import children
from partita.data.images import Codes, write_codes
from partita.models import checkpoints
from tests.golden import cases
from tests.support import kill_and_resume
from tests.support.checkpoints import lightning, other, parameters, state_of, write_tokenizer

TINY = "--network.width 16 --network.depth 1 --network.heads 2 --network.length 16"
FAST = "--training.batch_size 4 --run.previews 0 --data.cache tok"
PACE = "--training.steps 12 --run.checkpoint_every 4 --run.log_every 1"
TRAIN = f"train corpus.txt --out run {TINY} {FAST} {PACE}"
PATIENCE = 600.0
NOTES = "\n\n".join(f"note {n} is short, says äöü and 漢字 and ends" for n in range(30))
TEXTS = (
    "notes.txt",
    "notes.txt.gz",
    "notes.txt.xz",
    "notes.txt.zst",
    "rows.jsonl",
    "rows.jsonl.zst",
    "rows.parquet",
)
IMAGES = ("set.tar", "set.tar.gz", "set.tar.xz", "raw.tar", "mnist", "mnist-packed", "set")
PLACES: dict[str, Callable[[Path], None]] = {}


def place(build: Callable[[Path], None]) -> Callable[[Path], None]:
    """A function that fills a folder."""
    PLACES[build.__name__] = build
    return build


def command(words: str, folder: Path) -> None:
    """A command that must succeed."""
    log = folder.with_name(f"{folder.name}.log")
    if children.run_command(shlex.split(words), folder, log, PATIENCE) != 0:
        raise RuntimeError(f"partita {words}\n{log.read_text()}")


# Models and runs ---------------------------------------------------------------------------------


@place
def corpus(folder: Path) -> None:
    """A text to train on."""
    kill_and_resume.corpus(folder)


@place
def run(folder: Path) -> None:
    """A run that is not at its end."""
    corpus(folder)
    command(f"{TRAIN} --data.validation_fraction 0", folder)
    newest = checkpoints.latest(folder / "run")
    assert newest is not None
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()


@place
def finished(folder: Path) -> None:
    """A run with several validated checkpoints."""
    corpus(folder)
    command(f"{TRAIN} --run.validate_every 8", folder)


@place
def saved(folder: Path) -> None:
    """An exported model of text."""
    finished(folder)
    command("export run saved", folder)


@place
def drawing(folder: Path) -> None:
    """An exported model of images that were turned into codes, and its tokenizer."""
    images(folder)
    few = "--network.length 4 --network.grid 2 --network.width 16 --network.depth 1"
    vq = "--vq.steps 4 --vq.network.codes 16 --vq.network.width 8 --vq.network.factor 2"
    command(f"vq mnist vq {vq}", folder)
    command(f"train mnist --out run --tokenizer.name vq {few} {FAST} --training.steps 4", folder)
    command("export run saved", folder)


@place
def published(folder: Path) -> None:
    """Checkpoints as the reference implementations publish them."""
    state = state_of(cases.load("text/mdlm_dit"))
    average = [other(state)[name] for name in parameters(state)]
    torch.save(lightning(state, average), folder / "model.ckpt")
    write_tokenizer(folder / "tokenizer.json")


# Texts -------------------------------------------------------------------------------------------


@place
def texts(folder: Path) -> None:
    """The same notes in every kind of file."""
    data = NOTES.encode()
    rows = [{"text": text, "kind": f"k{n % 3}"} for n, text in enumerate(NOTES.split("\n\n"))]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    packer = zstandard.ZstdCompressor(write_checksum=True)
    contents = {
        "notes.txt": data,
        "notes.txt.gz": gzip.compress(data, mtime=0),
        "notes.txt.xz": lzma.compress(data),
        "notes.txt.zst": packer.compress(data),
        "rows.jsonl": lines,
        "rows.jsonl.zst": packer.compress(lines),
        "recipe.yaml": RECIPE.encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, folder / "rows.parquet", write_page_checksum=True)
    command("prepare notes.txt --tokenizer.name bpe --tokenizer.vocab_size 300", folder)
    (made,) = (folder / "prepared").glob("*/tokenizer.json")
    description = json.loads(made.read_text())
    (folder / "tokenizer.json").write_text(description["json"])


RECIPE = """\
data: {path: notes.txt, validation_fraction: 0.1, cache: tok}
tokenizer: {name: bytes}
method: {name: mdlm, law: subset}
network: {width: 16, depth: 1, heads: 2, length: 16}
training:
  steps: 20
  learning_rate: 0.001
  batch_size: 4
sampling: {sampler: ancestral, steps: 8}
run: {previews: 0, keep_checkpoints: 2}
"""


@place
def tokens(folder: Path) -> None:
    """Prepared tokens, with classes."""
    texts(folder)
    command(
        "prepare rows.jsonl --data.cache tok --data.label kind --data.validation_fraction 0.2",
        folder,
    )


# Images ------------------------------------------------------------------------------------------


def pictures(suffix: str) -> dict[str, bytes]:
    """Names and files of pictures of two classes, for training and testing."""
    found = {}
    for number in range(8):
        split, name = ("train", "test")[number // 4], ("cat", "dog")[number % 2]
        pixels = np.random.default_rng(number).integers(0, 256, (4, 4), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format=suffix.upper())
        found[f"{split}/{name}/{number}.{suffix}"] = stream.getvalue()
    return found


def tar(contents: dict[str, bytes]) -> bytes:
    """A tar of some files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def idx(pixels: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    sizes = struct.pack(f">{pixels.ndim}I", *pixels.shape)
    return bytes([0, 0, 8, pixels.ndim]) + sizes + pixels.tobytes()


@place
def images(folder: Path) -> None:
    """Sets of images of every kind."""
    inside = pictures("png")
    packed = tar(inside)
    contents = {
        "set.tar": packed,
        "set.tar.gz": gzip.compress(packed, mtime=0),
        "set.tar.xz": lzma.compress(packed),
        "raw.tar": tar(pictures("bmp")),
        **{f"set/{name}": data for name, data in inside.items()},
    }
    for part in ("train", "t10k"):
        pixels = np.random.default_rng(7).integers(0, 256, (20, 4, 4), dtype=np.uint8)
        labels = np.arange(20, dtype=np.uint8) % 3
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            contents[f"mnist/{part}-{name}-ubyte"] = idx(array)
            packed = gzip.compress(idx(array), mtime=0)
            contents[f"mnist-packed/{part}-{name}-ubyte.gz"] = packed
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@place
def codes(folder: Path) -> None:
    """Images as codes."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.randint(0, 9, (6, 3, 3), generator=generator)
    held = Codes(grid, torch.arange(6) % 2, 9)
    for suffix in ("npz", "safetensors"):
        write_codes(folder / f"codes.{suffix}", held)


@place
def drawn(folder: Path) -> None:
    """A picture of every kind."""
    for suffix in ("png", "jpeg", "bmp", "webp", "ppm"):
        data = next(iter(pictures(suffix).values()))
        (folder / f"picture.{suffix}").write_bytes(data)
