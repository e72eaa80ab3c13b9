"""Tokens on disk: exact, bounded, complete or not there."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.data.manifest import MANIFEST
from partita.data.shards import Shards, ShardWriter
from partita.errors import InputError


def store(folder, texts, vocab_size=300, shard=7):
    with ShardWriter(folder, vocab_size, {"who": "test"}, shard) as writer:
        for text in texts:
            writer.write(text)
            writer.end_document()
    return Shards.open(folder)


@settings(deadline=None, max_examples=30)
@given(texts=st.lists(st.lists(st.integers(0, 299), max_size=20), max_size=8))
def test_round_trip_across_shards(tmp_path_factory, texts):
    shards = store(tmp_path_factory.mktemp("a") / "s", texts)
    flat = [token for text in texts for token in text]
    assert len(shards) == len(flat)
    if flat:
        assert shards.read(0, len(flat)).tolist() == flat
        assert shards.read(len(flat) // 3, len(flat)).tolist() == flat[len(flat) // 3 :]
    ends, position = [], 0
    for text in filter(None, texts):
        position += len(text)
        ends.append(position)
    assert shards.ends.tolist() == ends


@pytest.mark.parametrize(("vocab", "name"), [(256, "uint8"), (257, "uint16"), (70_000, "uint32")])
def test_ids_take_the_smallest_integer(tmp_path, vocab, name):
    shards = store(tmp_path / "s", [[0, vocab - 1]], vocab)
    assert shards.manifest["dtype"] == name
    assert torch.equal(shards.read(0, 2), torch.tensor([0, vocab - 1]))
    assert shards.manifest["provenance"] == {"who": "test", "vocab_size": vocab}


def interrupt(folder):
    with ShardWriter(folder, 256, {}) as writer:
        writer.write([1, 2, 3])
        raise KeyboardInterrupt


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_rewrite_replaces_the_old_tokens(tmp_path):
    store(tmp_path / "s", [[1, 2, 3]])
    assert store(tmp_path / "s", [[4]]).read(0, 1).tolist() == [4]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def damage_manifest(folder):
    (folder / MANIFEST).write_text("{")


def damage_version(folder):
    manifest = json.loads((folder / MANIFEST).read_text()) | {"format": 99}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def damage_size(folder):
    with (folder / "tokens-00000.bin").open("ab") as stream:
        stream.write(b"\0\0")


def damage_byte(folder):
    path = folder / "tokens-00000.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "no complete shards"),
        (damage_manifest, "damaged"),
        (damage_version, "format 99"),
        (lambda folder: (folder / "documents.bin").unlink(), "missing"),
        (damage_size, "its manifest says"),
        (damage_byte, "was changed"),
    ],
)
def test_damage_is_named(tmp_path, damage, word):
    store(tmp_path / "s", [[1, 2, 3]])
    damage(tmp_path / "s")
    with pytest.raises(InputError, match=word):
        Shards.open(tmp_path / "s", verify=word == "was changed")
