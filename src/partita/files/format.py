"""The one format of models and checkpoints: a folder of safetensors and JSON, nothing else.

    config.json             the recipe, resolved, and its version; where the model comes from
    tokenizer.json          the tokenizer
    model.safetensors       the weights to use (the moving average of a run)
    manifest.json           format version and the checksum of every other file, written last
    training.safetensors    checkpoints only: weights and optimizer states to go on from
    state.json              checkpoints only: step, time spent, metrics

Image tokenizers and image classifiers are folders of the same format and of another kind; a
classifier has no tokenizer.json.

Reading runs no code that comes with the files: safetensors hold numbers, JSON holds text, and
every file is checked against its checksum before anything is made of it. Files may be links (the
cache of the hub is made of them): what they lead to is checked like any other file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from partita.errors import InputError, require
from partita.files.atomic import sha256, whole_file, whole_folder, write_whole
from partita.files.reading import reading

FORMAT = 2
"""Of the tensors: those of earlier formats are brought to it by `models/tensor_migration.py`."""
OLDEST = 1
KIND = "partita model"
IMAGE_TOKENIZER = "partita image tokenizer"
IMAGE_CLASSIFIER = "partita image classifier"
MANIFEST = "manifest.json"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_TENSORS = "tokenizer.safetensors"
WEIGHTS = "model.safetensors"
TRAINING = "training.safetensors"
STATE = "state.json"
CARD = "README.md"
REQUIRED = (CONFIG, TOKENIZER, WEIGHTS)
KNOWN = (*REQUIRED, TOKENIZER_TENSORS, TRAINING, STATE)
PICKLES = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")
_DEEPEST = 64  # levels of nesting in a JSON file
_LARGEST_JSON = 1 << 28  # bytes; the largest tokenizers take a tenth of it

Contents = Mapping[str, dict[str, Any] | dict[str, Tensor]]
Kind = tuple[torch.Size, torch.dtype]


# Writing -----------------------------------------------------------------------------------------


def write(folder: Path, contents: Contents, card: str | None = None, kind: str = KIND) -> None:
    """Write a folder of this format atomically; it replaces a model that was there."""
    folder = folder.resolve()
    _refuse_to_replace(folder, kind)
    with whole_folder(folder) as partial:
        write_into(partial, contents, card, kind)


def _refuse_to_replace(folder: Path, kind: str) -> None:
    """Refuse to replace anything but a model of the same kind."""
    with reading(folder, "folder"):
        usable = folder.is_dir() or not folder.exists()
        require(usable, "folder", f"{folder} is a file", "choose another name")
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    strange = sorted(names - {MANIFEST, CARD, *KNOWN})
    problem = f"{folder} holds something else than a model: {', '.join(strange[:3])}"
    require(not strange, "folder", problem, "choose another folder")
    found = kind_of(folder) if MANIFEST in names else kind
    problem = f"{folder} holds a {found}, which a {kind} does not replace"
    require(found == kind, "folder", problem, "choose another folder")


def kind_of(folder: Path) -> str:
    """The kind of what lies in a folder; damaged ones count as models, which may be replaced."""
    try:
        found = read_json(folder / MANIFEST).get("kind")
    except InputError:
        found = None
    return found if found in (IMAGE_TOKENIZER, IMAGE_CLASSIFIER) else KIND


def write_into(folder: Path, contents: Contents, card: str | None = None, kind: str = KIND) -> None:
    """The same into an existing folder, which is incomplete until the manifest is written."""
    for name, content in contents.items():
        if name.endswith(".safetensors"):
            with whole_file(folder / name) as partial:
                partial.touch()  # with the usual permissions, which the library's own are not
                usual = partial.stat().st_mode
                safetensors.torch.save_file(content, partial)
                partial.chmod(usual)
        else:
            write_whole(folder / name, json.dumps(content, indent=1))
    if card is not None:
        # Names of files need not be valid text.
        write_whole(folder / CARD, card.encode(errors="replace"))
    checksums = {name: sha256(folder / name) for name in contents}
    manifest = {"kind": kind, "format": FORMAT, "checksums": checksums}
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1))


# Reading -----------------------------------------------------------------------------------------


def verify(folder: Path, kind: str = KIND, required: tuple[str, ...] = REQUIRED) -> dict[str, str]:
    """Check a folder's format version and every checksum; the checksums by file name."""
    with reading(folder, "model"):
        _refuse_files(folder)
        path = folder / MANIFEST
        complete = path.is_file()
        require(complete, "model", f"{folder} holds no complete model ({MANIFEST} is missing)")
        manifest = read_json(path)
        require(manifest.get("kind") == kind, "model", f"{path} is not of a {kind}")
        _check_version(path, manifest.get("format"))
        checksums = manifest.get("checksums")
        if not isinstance(checksums, dict) or not set(required) <= set(checksums):
            raise InputError("model", f"{path} is damaged: it lacks checksums")
        for name, checksum in checksums.items():
            known = f"{path} names an unknown file {name!r:.200}"
            require(name in KNOWN, "model", known)
            _check_file(folder / name, checksum)
    return checksums


def version_of(folder: Path) -> int:
    """The format of a folder that has been verified."""
    return int(read_json(folder / MANIFEST)["format"])


def verify_file(folder: Path, name: str) -> None:
    """Check one file of a folder against its checksum, if it has one."""
    checksums = read_json(folder / MANIFEST).get("checksums")
    if not isinstance(checksums, dict):
        raise InputError("model", f"{folder / MANIFEST} is damaged: it lacks checksums")
    if name in checksums:
        _check_file(folder / name, checksums[name])


def _refuse_files(folder: Path) -> None:
    """A model is a folder; a file is most likely a pickle."""
    problem, remedy = f"{folder} does not exist", "check the name"
    if folder.exists() or folder.suffix.lower() in PICKLES:
        problem = f"{folder} is no folder of safetensors and JSON"
        remedy = "pickled weights are never read: they can run code; "
        remedy += "partita import makes a model of published ones"
    require(folder.is_dir(), "model", problem, remedy)


def _check_version(path: Path, version: object) -> None:
    whole = isinstance(version, int) and not isinstance(version, bool)
    if whole and OLDEST <= version <= FORMAT:  # type: ignore[operator]
        return
    newer = whole and version > FORMAT  # type: ignore[operator]
    problem = f"has format {version!r:.200}, this version of partita reads up to format {FORMAT}"
    remedy = "update partita" if newer else "save it again with the version that wrote it"
    raise InputError("model", f"{path} {problem}", remedy)


def _check_file(path: Path, checksum: object) -> None:
    require(path.is_file(), "model", f"{path} is missing")
    require(sha256(path) == checksum, "model", f"{path} was changed or cut short")


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Errors about the content of a file name the file too."""
    try:
        yield
    except InputError as error:
        raise InputError("model", f"{path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        require(path.stat().st_size <= _LARGEST_JSON, "model", f"{path} is too large")
        content = json.loads(path.read_bytes().decode())  # not whatever encoding they look like
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("model", f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or _depth(content) > _DEEPEST:
        raise InputError("model", f"{path} is damaged: it holds no plain object")
    return content


def _depth(value: object, level: int = 0) -> int:
    if level > _DEEPEST or not isinstance(value, dict | list):
        return level
    inside = value.values() if isinstance(value, dict) else value
    return max((_depth(item, level + 1) for item in inside), default=level)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, which may be mapped from it: copy those to keep."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise InputError("model", f"{path} is damaged: {error}") from error


def precision(path: Path) -> torch.dtype:
    """The type that the numbers of a model's weights are stored in: all of them have the same."""
    return next(iter(read_tensors(path).values())).dtype


def check_tensors(
    path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Kind], argument: str = "model"
) -> None:
    """A file's tensors must have exactly these names, shapes and types."""
    for name in sorted({*expected, *tensors}):
        shown = f"{name:.200}"  # strangers' names may be of any length
        require(name in tensors, argument, f"{path} lacks the tensor {shown}")
        require(name in expected, argument, f"{path} holds an unknown tensor {shown}")
        (shape, dtype), tensor = expected[name], tensors[name]
        found, wanted = f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(shape)}"
        require(found == wanted, argument, f"{path}: {shown} is {found}, expected {wanted}")


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite, which would spoil every result."""
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or not tensor.is_floating_point():
            continue
        # One pass without a copy; a NaN is the least and the largest of all numbers.
        least, largest = (float(end) for end in tensor.aminmax())
        if not (math.isfinite(least) and math.isfinite(largest)):
            held = "a NaN" if math.isnan(least) else "an infinite number"
            remedy = "use an earlier checkpoint, or train again with a lower training.learning_rate"
            raise InputError("model", f"{path}: the tensor {name:.200} holds {held}", remedy)


def shapes(path: Path) -> dict[str, int]:
    """The number of elements of each tensor, from the file's header alone."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: math.prod(file.get_slice(name).get_shape()) for name in names}
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise InputError("model", f"{path} is damaged: {error}") from error
