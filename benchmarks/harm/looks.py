"""What a command made, as a checksum of all that must be equal, and of nothing else (dates, times
and folders' names differ)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partita.files import format
from partita.files.atomic import PARTIAL
from partita.models import checkpoints

_CHANGING = ("date", "seconds", "tokens_per_second", "source", "sha256", "data", "path", "tokens")


def digest(parts: Iterable[object]) -> str:
    """A checksum of some values, bytes or whatever has a `repr`."""
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode(errors="surrogateescape")
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def stable(content: Any) -> Any:  # noqa: ANN401 - any JSON
    """JSON without what changes from run to run."""
    if isinstance(content, dict):
        return {key: stable(value) for key, value in content.items() if key not in _CHANGING}
    return [stable(item) for item in content] if isinstance(content, list) else content


def tokens(cache: Path) -> str:
    """Prepared tokens, whatever the name of their folder."""
    folders = sorted(path for path in cache.iterdir() if PARTIAL not in path.name)
    parts: list[object] = [len(folders)]
    for folder in folders:
        parts += [_bytes(path, folder) for path in _files(folder) if path.suffix == ".bin"]
        for part in ("train", "valid"):
            manifest = json.loads((folder / part / "manifest.json").read_text())
            manifest.pop("provenance")
            parts.append(stable({**manifest, "tokens": len(parts), "sizes": manifest["tokens"]}))
        parts += [path.read_bytes() for path in sorted(folder.glob("tokenizer.*"))]
    return digest(parts)


def model(folder: Path) -> str:
    """A saved model, checkpoint or image tokenizer: the files that the manifest names, which must
    be what it says of them."""
    manifest = json.loads((folder / format.MANIFEST).read_text())
    parts: list[object] = [manifest["kind"]]
    for name, checksum in sorted(manifest["checksums"].items()):
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != checksum:
            raise ValueError(f"{folder / name} is not what its manifest says")
        changes = name in (format.CONFIG, format.STATE)
        parts += [name, stable(json.loads(data)) if changes else data]
    return digest(parts)


def run(folder: Path) -> str:
    """A run: its last checkpoint with the states of optimizers, and the losses of all steps."""
    newest = checkpoints.latest(folder)
    if newest is None:
        return "no checkpoint"
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    steps = [(line["step"], line.get("loss", line.get("valid_bits"))) for line in lines]
    return digest([newest.name, model(newest), steps])


def weights(folder: Path) -> str:
    """The last checkpoint alone."""
    newest = checkpoints.latest(folder)
    return "no checkpoint" if newest is None else digest([newest.name, model(newest)])


def listing(place: Path) -> set[str]:
    """The names of all files and folders, without locks."""
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.name != ".lock"}


def leftovers(place: Path) -> list[str]:
    """Names of what somebody began to write. An empty lock holds nothing, and goes with the next
    writer."""
    begun = sorted(name for name in listing(place) if PARTIAL in name or ".tmp" in name)
    return [name for name in begun if not name.endswith(".lock")]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _bytes(path: Path, folder: Path) -> tuple[str, str]:
    return str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()
