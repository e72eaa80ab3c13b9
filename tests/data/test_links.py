"""Data behind links: what is read through a link is what the name of the tokens is made of."""

from __future__ import annotations

import numpy as np
import pytest

from partita.commands import main
from partita.data.documents import Corpus
from partita.data.image_data import ImageSet
from partita.data.images import ImageOptions
from partita.data.prepare import PrepareOptions, cache_key, prepare
from partita.errors import InputError
from partita.files.reading import files_under
from tests.support.images import CLASSES, files, write_folder
from tests.support.texts import texts


def test_pictures_behind_links_are_not_served_stale(tmp_path, capsys):
    """The folders of the classes are links; then what they lead to is replaced."""
    chosen, elsewhere = tmp_path / "chosen", tmp_path / "elsewhere"
    chosen.mkdir()
    write_folder(elsewhere, files())
    for name in CLASSES:
        (chosen / name).symlink_to(elsewhere / name)
    words = [
        "prepare",
        str(chosen),
        "--tokenizer.name",
        "pixels",
        "--data.validation_fraction",
        "0",
    ]
    words += ["--data.cache", str(tmp_path / "cache")]
    folders = []
    for said in ("Prepared", "Nothing changed", "Prepared"):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert out.startswith(said)
        folders.append(out.splitlines()[-1])
        if len(folders) == 2:
            changed = {name: 255 - array for name, array in files().items()}
            write_folder(elsewhere, changed)
    assert folders[0] == folders[1] != folders[2]
    tokens = np.fromfile(f"{folders[2]}/train/tokens-00000.bin", np.uint8)
    assert tokens.tolist() == np.concatenate([a.ravel() for a in changed.values()]).tolist()


def test_a_set_without_links_has_the_name_that_it_always_had(tmp_path):
    """Whatever was prepared by the version before is found again."""
    write_folder(tmp_path / "set", {"cat/a.png": b"a", "dog/deep/b.png": b"b", ".hidden/c": b"c"})
    (tmp_path / "set" / "list").write_text("words")
    found = [str(path.relative_to(tmp_path / "set")) for path in files_under(tmp_path / "set")]
    assert found == ["cat/a.png", "dog/deep/b.png", "list"]
    identity = ImageSet(str(tmp_path / "set"), ImageOptions()).identity()
    assert identity == "bd38731b1fe732dcd10637dcae5c8011acd51a195342c13c37122789432ecf52"
    (tmp_path / "a.txt").write_text("some text")
    assert cache_key(Corpus(tmp_path / "a.txt"), PrepareOptions()) == "38fdd0437c7c4d6ff4d4"


@pytest.fixture
def linked(tmp_path):
    """A folder with a file, a link to a file and a link to a folder."""
    store, place = tmp_path / "store", tmp_path / "texts"
    (store / "blobs").mkdir(parents=True)
    place.mkdir()
    (place / "a.txt").write_text("one")
    (store / "0001").write_text("two")
    (place / "b.txt").symlink_to(store / "0001")
    (store / "blobs" / "x.txt").write_text("three")
    (place / "c").symlink_to(store / "blobs")
    return place


def test_texts_behind_links_are_read_and_change_the_name(linked):
    assert texts(Corpus(linked)) == ["one", "two", "three"]
    keys = {cache_key(Corpus(linked), PrepareOptions())}
    for name in ("b.txt", "c/x.txt"):
        (linked / name).write_text("another")  # through the link
        keys.add(cache_key(Corpus(linked), PrepareOptions()))
    assert len(keys) == 3
    through = linked.parent / "through"
    through.symlink_to(linked)
    assert cache_key(Corpus(through), PrepareOptions()) in keys


def test_a_text_is_labelled_by_the_folder_that_it_is_in_by_name(linked):
    """Not by the one in which its contents are kept."""
    label = {text.text: text.label for text in Corpus(linked, label="folder").pieces()}
    assert label == {"one": "texts", "two": "texts", "three": "c"}
    prepared = prepare(Corpus(linked, label="folder"), linked.parent / "cache")
    assert prepared.train.classes == ["c", "texts"]


def test_a_text_in_the_working_folder_is_labelled_by_its_name(linked, monkeypatch):
    monkeypatch.chdir(linked)
    for name, label in (("a.txt", "texts"), ("../texts/a.txt", "texts"), ("./c/x.txt", "c")):
        assert [piece.label for piece in Corpus(name, label="folder").pieces()] == [label]
    monkeypatch.chdir(linked.parent / "store" / "blobs")
    assert [piece.label for piece in Corpus("../0001", label="folder").pieces()] == ["store"]


def test_links_in_circles_come_to_an_end(linked):
    (linked / "circle").symlink_to(linked)
    (linked.parent / "store" / "blobs" / "back").symlink_to(linked.parent)
    names = [str(path.relative_to(linked)) for path in files_under(linked)]
    assert names == ["a.txt", "b.txt", "c/back/store/0001", "c/x.txt"]
    assert texts(Corpus(linked)) == ["one", "two", "two", "three"]


def test_a_link_to_nothing_is_no_text_that_may_be_left_out(linked):
    (linked / "d.txt").symlink_to(linked.parent / "not-fetched")
    with pytest.raises(InputError, match=r"d\.txt is a link to nothing; remove it, or bring back"):
        texts(Corpus(linked))
