"""Hostile models: files whose checks hold, and whose content does not."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from random import Random
from typing import Any

from harm.damage import damaged
from partita.files import format
from partita.files.atomic import sha256
from tests.support import mutation
from tests.support.checkpoints import entries_of, write_archive

CANARY = "harm"
"""A file that is there if something in the input was run."""


def sealed(random: Random, path: Path, data: bytes) -> tuple[bytes, str]:
    """A file of a model, changed, and the manifest's checksum of it made right."""
    if path.name == format.MANIFEST:
        return mutation.alter_json(random, data), "another manifest"
    mutation.damage(random, path)
    after = path.read_bytes()
    manifest = path.with_name(format.MANIFEST)
    content = json.loads(manifest.read_bytes())
    content["checksums"][path.name] = sha256(path)
    manifest.write_text(json.dumps(content))
    return after, "changed, with a checksum that is right"


class Call:
    """Pickled as a call, which a reader of data must not make: it leaves a file in the folder."""

    def __reduce__(self) -> Any:  # noqa: ANN401
        return os.system, (f"touch {CANARY}",)


def published(random: Random, data: bytes) -> bytes:
    """A checkpoint of torch.save with another pickle, or another entry; checks hold again."""
    held, made = Path("held.ckpt"), Path("made.ckpt")
    held.write_bytes(data)
    entries = entries_of(held)
    program = entries.pop("data.pkl")
    name = random.choice(["pickle", "pickle", "call", "entry"])
    if name == "pickle":
        program = damaged(random, program)[0]
    elif name == "call":
        program = program[:-1] + pickle.dumps(Call(), 2)[2:-1] + b"0."
    else:
        one = random.choice(sorted(entries))
        entries[one] = damaged(random, entries[one])[0]
    write_archive(made, program, **entries)
    data = made.read_bytes()
    held.unlink()
    made.unlink()
    return data


def safetensors(random: Random, data: bytes) -> bytes:
    """Another header, or other tensors."""
    alter = random.choice([mutation.alter_header, mutation.alter_tensors])
    altered: bytes = alter(random, data)
    return altered
