"""Prepared tokens on a bad day: damaged, made twice at once, out of room, of files that change."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from contextlib import contextmanager

import pytest
from filelock import FileLock

from partita.commands import main
from partita.data import checking, prepared
from partita.data.checking import check_contents
from partita.data.documents import Corpus
from partita.data.manifest import MANIFEST
from partita.data.prepare import PrepareOptions, prepare
from partita.data.prepared import CHECKSUMS, Prepared
from partita.data.shards import Shards
from partita.errors import InputError
from tests.support.preparing import calling
from tests.support.runs import FAST, SMALL

ROWS = [
    {"text": f"document number {n}", "kind": "even" if n % 2 == 0 else "odd"} for n in range(99)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A prepared corpus with classes, and the words that prepare it."""
    place = tmp_path_factory.mktemp("made")
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    words = [str(place / "rows.jsonl"), "--data.label", "kind"]
    words += ["--data.cache", str(place / "cache")]
    assert main(["prepare", *words]) == 0
    [folder] = (place / "cache").iterdir()
    return words, folder


@pytest.fixture
def damaged(made, tmp_path):
    """The same, to be damaged."""
    words, folder = made
    cache = tmp_path / "cache"
    shutil.copytree(folder.parent, cache)
    return [*words[:-1], str(cache)], cache / folder.name


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def longer(path):
    path.write_bytes(path.read_bytes() + bytes(8))


def lost(path):
    path.unlink()


DAMAGES = {
    "train/tokens-00000.bin": (zeros, flip, cut, longer, lost),
    "train/documents.bin": (zeros, flip, cut, longer, lost),
    "valid/labels.bin": (zeros, flip, cut, lost),
    "tokenizer.json": (zeros, flip, cut),
    "train/manifest.json": (zeros, flip, cut, lost),
    "checksums.json": (zeros, flip, cut),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [(name, damage) for name, damages in DAMAGES.items() for damage in damages],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_damaged_tokens_are_refused_with_what_to_do(damaged, capsys, name, damage):
    words, folder = damaged
    damage(folder / name)
    assert main(["prepare", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("partita: data.cache: ")
    assert f"remove {folder}, and it is made anew" in error
    assert str(folder / name) in error or str((folder / name).parent) in error
    shutil.rmtree(folder)
    assert main(["prepare", *words]) == 0
    assert "Prepared" in capsys.readouterr().out


def test_nothing_is_trained_on_damaged_tokens_not_even_by_a_run_that_goes_on(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(row["text"] for row in ROWS))
    cache, out = tmp_path / "cache", tmp_path / "run"
    words = ["train", str(tmp_path / "a.txt"), "--data.cache", str(cache), *SMALL.split()]
    words += [*FAST.split(), "--training.steps", "1", "--data.validation_fraction", "0"]
    assert main([*words, "--out", str(out)]) == 0
    [folder] = cache.iterdir()
    zeros(folder / "train" / "tokens-00000.bin")
    capsys.readouterr()
    for place in (out, tmp_path / "another"):
        assert main([*words, "--out", str(place)]) == 2
        error = capsys.readouterr().err
        assert f"{folder / 'train' / 'tokens-00000.bin'} was changed" in error
        assert f"remove {folder}, and it is made anew" in error
    assert not (tmp_path / "another").exists()


def test_python_opens_no_damaged_tokens_either(damaged):
    _, folder = damaged
    assert len(Shards.open(folder / "train")) == len(Prepared.open(folder).train)
    flip(folder / "train" / "tokens-00000.bin")
    for opened in (lambda: Shards.open(folder / "train"), lambda: Prepared.open(folder)):
        with pytest.raises(InputError, match="was changed, or its disk failed"):
            opened()


def test_tokens_of_the_version_before_are_served_and_checked(damaged, capsys):
    """They have no checksums of small files; those of their tokens they always had."""
    words, folder = damaged
    (folder / CHECKSUMS).unlink()
    assert main(["prepare", *words]) == 0
    assert "Nothing changed" in capsys.readouterr().out
    flip(folder / "valid" / "documents.bin")
    assert main(["prepare", *words]) == 2
    assert "documents.bin was changed" in capsys.readouterr().err


ENTRIES = [
    ("tokens", 1 << 60),
    ("tokens", -1),
    ("tokens", "many"),
    ("documents", 1 << 60),
    ("shard_tokens", 0),
    ("shard_tokens", 1),
    ("dtype", "float64"),
    ("dtype", "object"),
    ("classes", {}),
    ("classes", []),
    ("checksums", {}),
    ("provenance", None),
]


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_a_manifest_that_anybody_may_have_written(damaged, key, value):
    _, folder = damaged
    (folder / CHECKSUMS).unlink()
    path = folder / "train" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for verify in (True, False):
        with pytest.raises(InputError) as caught:
            Shards.open(folder / "train", verify)
        assert caught.value.argument == "shards"


# The check itself --------------------------------------------------------------------------------


def test_contents_are_read_once_in_pieces_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "_AT_ONCE", 1 << 10)
    monkeypatch.setattr(checking, "_REPORT_EVERY", 0)
    contents = {tmp_path / str(n): bytes([n]) * 5000 for n in range(20)}
    for path, data in contents.items():
        path.write_bytes(data)
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in contents.items()}
    told = []
    check_contents(sums, lambda read, total: told.append((read, total)))
    assert {total for _, total in told} == {100_000}
    assert [read for read, _ in told] == sorted(read for read, _ in told)
    assert 0 <= told[0][0] <= told[-1][0] <= 100_000
    (tmp_path / "7").write_bytes(b"\7" * 4999 + b"\6")
    with pytest.raises(InputError, match=r"7 was changed, or its disk failed"):
        check_contents(sums)


def test_an_interruption_ends_a_check_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "_AT_ONCE", 1 << 10)
    monkeypatch.setattr(checking, "_REPORT_EVERY", 0)
    path = tmp_path / "large"
    path.write_bytes(bytes(1 << 24))
    read = []

    def interrupt(done, _total):
        read.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_contents({path: ""}, interrupt)
    assert read[0] < 1 << 24


# Files that change, several at once, no room ----------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
    place = tmp_path / "texts"
    place.mkdir()
    for name in ("a.txt", "b.txt"):
        (place / name).write_text("\n\n".join(row["text"] for row in ROWS))
    return Corpus(place)


def grow(place):
    with (place / "a.txt").open("a") as stream:
        stream.write("more")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (grow, "a.txt"),
        (lambda place: (place / "c.txt").write_text("new"), "c.txt"),
        (lambda place: (place / "b.txt").rename(place / "d.txt"), "b.txt"),
    ],
)
def test_files_that_change_while_they_are_read_are_not_kept(tmp_path, corpus, change, name):
    """Their tokens would be served once the files are again what they were at first."""
    changes = [change]

    def progress(_characters):
        if changes:
            changes.pop()(corpus.path)

    with pytest.raises(InputError, match=rf"{name} changed while it was read; give the same comm"):
        prepare(corpus, tmp_path / "cache", callback=calling(on_prepare=progress))
    assert not (tmp_path / "cache").exists()
    assert prepare(corpus, tmp_path / "cache", callback=calling(on_prepare=progress)).fresh


def test_two_that_prepare_the_same_at_once_have_the_same(tmp_path, corpus):
    """Who is done first keeps the folder, which may be in use already."""
    cache, others = tmp_path / "cache", []

    def progress(_characters):
        if not others:
            others.append(None)  # another process would be as far as this
            others[0] = prepare(corpus, cache)
            others.append((others[0].folder / CHECKSUMS).stat().st_ino)

    mine = prepare(corpus, cache, callback=calling(on_prepare=progress))
    assert (others[0].fresh, mine.fresh) == (True, False)
    assert [path.name for path in cache.iterdir()] == [mine.folder.name]
    assert (mine.folder / CHECKSUMS).stat().st_ino == others[1]
    assert mine.train.read(0, 100).tolist() == others[0].train.read(0, 100).tolist()


@contextmanager
def room(size):
    """No file may have more bytes than these, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_without_room_there_is_one_message_and_nothing_half_written(tmp_path, corpus, size, capsys):
    words = ["prepare", str(corpus.path), "--data.cache", str(tmp_path / "cache")]
    with room(size):
        code = main(words)
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("partita: ")
    assert "File too large" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "cache").exists()
    assert main(words) == 0


def test_what_a_killed_preparation_left_is_removed_even_if_nothing_is_to_do(tmp_path, corpus):
    cache = tmp_path / "cache"
    folder = prepare(corpus, cache).folder
    left = cache / "0123456789abcdef0123.partial-77-01234567"
    (left / "train").mkdir(parents=True)
    FileLock(f"{left}.lock").acquire()  # let go when the lock is forgotten, as by a dead process
    assert not prepare(corpus, cache).fresh
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_a_tokenizer_learns_with_a_word_on_how_far_it_is(tmp_path, corpus, monkeypatch):
    seen = []
    prepare(
        corpus,
        tmp_path / "cache",
        PrepareOptions("bpe", 300),
        callback=calling(on_prepare=seen.append),
    )
    total = len(Corpus(corpus.path).files()) * sum(len(row["text"]) for row in ROWS)
    assert seen.count(total) == 2  # once to learn, once to make tokens
    monkeypatch.setattr(prepared, "check_contents", None)  # what is fresh is not checked
    assert prepare(corpus, tmp_path / "another", PrepareOptions("characters")).fresh
