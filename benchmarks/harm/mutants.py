"""Readers of the library, given what nobody should give them."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from harm import looks, odd_images, odd_models, odd_texts
from harm.damage import damaged
from harm.subjects import Action, Change, Subject, printed
from partita.commands import train
from partita.commands.import_model import find_tokenizer
from partita.data.documents import Corpus
from partita.data.images import ImageOptions, read_codes, read_images
from partita.data.images.decoding import decode
from partita.data.prepare import read_tokenizer
from partita.models.published.importing import import_model
from partita.models.published.planning import ImportOptions
from partita.models.text_model import TextModel
from partita.models.trained import TrainedModel

TOGETHER = 30  # cases of a process
Inside = odd_texts.Inside


def reader(name: str, read: Callable[[], Iterable[object]]) -> Action:
    """A function of the library; what it reads is its result."""

    def do() -> int:
        print(looks.digest(read()))
        return 0

    return Action(name, do, printed)


def either(*inventions: Inside) -> Change:
    """One of several inventions, or damage to the bytes as they are."""

    def change(random: Random, _path: Path, data: bytes) -> tuple[bytes, str]:
        chosen = random.choice([*inventions, *inventions, None])
        if chosen is None:
            return damaged(random, data)
        return chosen(random, data), chosen.__name__

    return change


def _documents(name: str) -> Iterable[object]:
    return Corpus(name, label="kind" if name.startswith("rows") else None).pieces()


def _recipe() -> Iterable[object]:
    return train.options(["--config", "recipe.yaml"])


def _tokens() -> Iterable[object]:
    tokenizer = read_tokenizer(Path("tokenizer.json"))
    ids = tokenizer.encode("a text, äöü")
    return tokenizer.vocab_size, ids, tokenizer.decode([*ids, 0, 299])


def _images(name: str) -> Iterable[object]:
    for split in ("train", "test"):
        found = read_images(name, ImageOptions(split))
        yield from (found.pixels.numpy().tobytes(), found.labels.tolist(), found.classes)


def _picture(name: str) -> Iterable[object]:
    pixels = decode(Path(name).read_bytes(), name, None, None)
    return pixels.tobytes(), pixels.shape


def _codes(name: str) -> Iterable[object]:
    found = read_codes(name)
    return found.codes.tolist(), found.labels.tolist(), found.vocab_size


def _weights(model: TrainedModel) -> Iterable[object]:
    return ((name, tensor.numpy().tobytes()) for name, tensor in model.method.state_dict().items())


def _model() -> Iterable[object]:
    model = TextModel.from_pretrained("saved", device="cpu")
    assert model.card()
    yield from _weights(model)
    yield model.sample(1, steps=2)


def _published() -> Iterable[object]:
    tokenizer = find_tokenizer("tokenizer.json")
    return _weights(import_model(Path("model.ckpt"), tokenizer, ImportOptions(length=16)))


def _subject(
    name: str, place: str, read: Callable[[], Iterable[object]], change: Change, *files: str
) -> Subject:
    action = reader(name, read)
    files = files or (name,)
    return Subject(f"mutants/{name}", place, files, (action,), change=change, together=TOGETHER)


def _text(name: str, *inventions: Inside) -> Subject:
    return _subject(name, "texts", lambda: _documents(name), either(*inventions))


def _set(name: str, *inventions: Inside, files: str = "") -> Subject:
    files = files or name
    return _subject(name, "images", lambda: _images(name), either(*inventions), files)


def _drawn(suffix: str, *inventions: Inside) -> Subject:
    name = f"picture.{suffix}"
    return _subject(name, "drawn", lambda: _picture(name), either(*inventions))


_FILES = ("saved/*.json", "saved/*.safetensors")
MUTANTS = (
    _text("notes.txt", odd_texts.odd_text),
    _text("notes.txt.gz", odd_texts.packed(gzip.compress)),
    _text("notes.txt.xz", odd_texts.packed(lzma.compress)),
    _text("notes.txt.zst", odd_texts.packed(odd_texts.zstd)),
    _text("rows.jsonl", odd_texts.json_lines, odd_texts.odd_text),
    _text("rows.parquet", odd_texts.parquet),
    _subject("recipe.yaml", "texts", _recipe, either(odd_texts.yaml_document, odd_texts.odd_text)),
    _subject("tokenizer.json", "texts", _tokens, either(odd_texts.json_document)),
    _set("set.tar", odd_images.tar),
    _set("mnist", odd_images.idx, files="mnist/*"),
    _set("mnist-packed", odd_images.idx, files="mnist-packed/*"),
    _drawn("png", odd_images.png),
    *(_drawn(suffix) for suffix in ("jpeg", "bmp", "webp", "ppm")),
    _subject("codes.npz", "codes", lambda: _codes("codes.npz"), either(odd_images.arrays)),
    _subject(
        "codes.safetensors",
        "codes",
        lambda: _codes("codes.safetensors"),
        either(odd_models.safetensors),
    ),
    replace(
        _subject("model", "saved", _model, odd_models.sealed, *_FILES),
        called=("the network's weights",),
    ),
    _subject("model.ckpt", "published", _published, either(odd_models.published)),
)
