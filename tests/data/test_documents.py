"""Documents from files: every format, any size, and clear words about what is no text."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.data import documents
from partita.data.documents import Corpus, Piece
from partita.errors import InputError
from tests.support.texts import texts, write

TEXT = "One.\nStill one.\n\nTwo, with ünïcödé.\n\n\n\nThree.\n"
PARAGRAPHS = ["One.\nStill one.", "Two, with ünïcödé.", "Three."]


@pytest.mark.parametrize("suffix", ["", ".txt", ".txt.gz", ".txt.xz", ".md"])
def test_plain_text(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", TEXT.encode())
    assert texts(Corpus(path)) == PARAGRAPHS
    assert texts(Corpus(path, documents="file")) == [TEXT]
    lines = [line for line in TEXT.split("\n") if line]
    assert texts(Corpus(path, documents="line")) == lines


def test_zstandard_and_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet
    import zstandard

    compressed = tmp_path / "a.txt.zst"
    compressed.write_bytes(zstandard.compress(TEXT.encode()))
    assert texts(Corpus(compressed)) == PARAGRAPHS
    table = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one", None, "", "two"]}), table)
    assert texts(Corpus(table, field="body")) == ["one", "two"]
    with pytest.raises(InputError, match="no column 'text'"):
        list(Corpus(table).pieces())


@pytest.mark.parametrize(
    ("name", "package"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")]
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    with pytest.raises(InputError, match=f"needs the package {package}; pip install"):
        list(Corpus(write(tmp_path / name, b"x")).pieces())


def test_an_empty_file_holds_no_document(tmp_path):
    path = write(tmp_path / "a.txt", b"")
    for kind in ("paragraph", "line", "file"):
        assert texts(Corpus(path, documents=kind)) == []


def test_folders_are_read_in_order_without_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden" / "deep" / "deeper").mkdir(parents=True)
    hidden = (".hidden/3.txt", ".hidden/deep/deeper/5.txt", ".4")
    for name, text in (("b/2.txt", "two"), ("a.txt", "one"), *((name, "no") for name in hidden)):
        (tmp_path / name).write_text(text)
    assert texts(Corpus(tmp_path)) == ["one", "two"]
    assert texts(Corpus(str(tmp_path / "b"))) == ["two"]
    assert texts(Corpus(tmp_path / ".hidden")) == ["no", "no"]  # asked for by name


def test_json_lines(tmp_path):
    rows = [{"text": "one\n\nstill one", "id": 1}, {"text": ""}, {"text": "two"}]
    path = tmp_path / "a.jsonl.gz"
    write(path, "\n".join(map(json.dumps, rows)).encode() + b"\n\n")
    assert texts(Corpus(path)) == ["one\n\nstill one", "two"]


@given(
    st.lists(st.text(st.sampled_from("ab \n"), max_size=12), max_size=12),
    st.integers(1, 9),
    st.sampled_from(["paragraph", "line", "file"]),
)
def test_chunks_do_not_matter(parts, size, kind):
    """The same documents whatever the size of the chunks that are read."""
    text, separator = "".join(parts), documents.SEPARATORS[kind]

    def whole(chunks, limit):
        original, documents.PIECE = documents.PIECE, limit
        try:
            pieces = list(documents._split(iter(chunks), separator))
        finally:
            documents.PIECE = original
        return "".join(piece.text + ("|" if piece.ends else "") for piece in pieces)

    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert whole(chunks, 3) == whole([text], 10**9)


def test_a_long_document_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 10)
    path = write(tmp_path / "a.txt", b"x" * 35 + b"\n\nnext")
    pieces = list(Corpus(path).pieces())
    assert max(len(piece.text) for piece in pieces) <= 21
    assert pieces[0].ends is False
    assert texts(Corpus(path)) == ["x" * 35, "next"]
    assert pieces[-1] == Piece("next", ends=True)


@pytest.mark.parametrize(
    ("name", "data", "options", "argument", "word"),
    [
        ("a.txt", b"ok \0 not", {}, "path", "binary"),
        ("a.txt", b"caf\xe9 au lait", {}, "path", "UTF-8 near byte 3"),
        ("a.txt", b"caf\xc3", {}, "path", "UTF-8"),
        ("a.xz", None, {}, "path", "damaged"),
        ("a.gz", None, {}, "path", "damaged"),
        ("a.zst", None, {}, "path", "damaged"),
        ("a.parquet", None, {}, "path", "no Parquet file"),
        ("a.jsonl", b'{"text": "a"}\n{"text"', {}, "path", "line 2"),
        ("a.jsonl", b'{"body": "a"}', {}, "field", "it has: body"),
        ("a.jsonl", b"[1, 2]", {}, "field", "line 1"),
        ("a.jsonl", b'{"text": 3}', {}, "field", "no text"),
        ("a.jsonl", b"[" * 100_000, {}, "path", "line 1 is not JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', {}, "path", "line 1 is no Unicode text"),
        ("a.txt", b"a", {"documents": "page"}, "documents", "known: paragraph, line, file"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path, name, data, options, argument, word):
    path = tmp_path / name
    if data is None:
        path.write_bytes(b"not compressed at all")
    else:
        write(path, data)
    with pytest.raises(InputError, match=word) as caught:
        list(Corpus(path, **options).pieces())
    assert caught.value.argument == argument


def test_missing_and_empty_places(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Corpus(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no files"):
        list(Corpus(tmp_path).pieces())


def compressed(suffix):
    import pyarrow
    import pyarrow.parquet
    import zstandard

    data = np.random.default_rng(0).integers(32, 127, 50_000, dtype=np.uint8).tobytes()
    if suffix == ".parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"text": [data.decode()] * 9}), sink)
        return sink.getvalue().to_pybytes()
    return {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[suffix](data)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".parquet"])
def test_damage_is_an_error_that_names_the_file(tmp_path, suffix):
    """Cut anywhere or overwritten anywhere, a file is never taken for a shorter text."""
    whole, path = compressed(suffix), tmp_path / f"a{suffix}"
    path.write_bytes(whole)
    intact = texts(Corpus(path, documents="file"))
    positions = np.random.default_rng(1).integers(1, len(whole), 40).tolist()
    for place in positions:
        path.write_bytes(whole[:place])
        with pytest.raises(InputError, match=f"a{suffix}") as caught:
            texts(Corpus(path, documents="file"))
        assert caught.value.argument == "path"
        path.write_bytes(whole[:place] + b"\xff" * 50 + whole[place + 50 :])
        with suppress(InputError):
            found = texts(Corpus(path, documents="file"))
            # Some bytes hold no text (a timestamp, say), and some formats no checksum.
            assert suffix in (".zst", ".parquet") or found == intact


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_packed_file_that_was_cut_to_nothing_is_no_empty_text(tmp_path, suffix):
    (tmp_path / f"b{suffix}").write_bytes(b"")
    (tmp_path / "a.txt").write_bytes(b"a text")
    with pytest.raises(InputError, match=f"b{suffix} is damaged or not what its name says"):
        texts(Corpus(tmp_path))


def test_the_sums_of_parquet_pages_are_checked(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path, table = tmp_path / "a.parquet", pyarrow.table({"text": ["one text", "another one"]})
    how = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    for sums in (True, False):
        pyarrow.parquet.write_table(table, path, write_page_checksum=sums, **how)
        path.write_bytes(path.read_bytes().replace(b"another", b"anathor"))
        if sums:
            with pytest.raises(InputError, match=r"a\.parquet is damaged"):
                texts(Corpus(path))
    assert texts(Corpus(path)) == ["one text", "anathor one"]  # nothing could have told


def test_all_frames_of_a_zst_are_read(tmp_path):
    import zstandard

    frames = [zstandard.compress(text) for text in (b"one\n", b"", b"two\n")]
    path = write(tmp_path / "a.txt.zst", b"".join(frames))
    assert texts(Corpus(path, documents="line")) == ["one", "two"]


def test_a_parquet_column_of_numbers_is_no_text(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    with pytest.raises(InputError, match="'text' holds no text") as caught:
        list(Corpus(path).pieces())
    assert caught.value.argument == "field"


def refuse(*_args, **_options):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz", "a.txt.zst", "a.jsonl"])
def test_an_unreadable_file_is_named(tmp_path, monkeypatch, name):
    corpus = Corpus(write(tmp_path / name, b""))
    monkeypatch.setattr(Path, "open", refuse)
    for call in (corpus.pieces, corpus.identity):
        with pytest.raises(InputError, match=f"{name} cannot be read: Permission denied"):
            list(call())


def test_an_unreadable_folder_is_no_empty_one(tmp_path, monkeypatch):
    corpus = Corpus(tmp_path)
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        corpus.files()


def test_neither_file_nor_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        Corpus(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        Corpus(tmp_path / ("x" * 5000))
    write(tmp_path / "a.txt", b"text")
    assert texts(Corpus(tmp_path)) == ["text"]  # a pipe in a folder would be waited for


def test_windows_line_ends_are_line_ends(tmp_path):
    text = "one\n\ntwo\nlines\n\nthree"
    for name, ends in (("unix.txt", "\n"), ("windows.txt", "\r\n"), ("old.txt", "\r")):
        (tmp_path / name).write_bytes(text.replace("\n", ends).encode())
        pieces = list(Corpus(tmp_path / name).pieces())
        assert [piece.text for piece in pieces] == ["one", "two\nlines", "three"]


def test_a_null_is_a_row_without_text(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": null}\n{"text": "b"}')
    assert [piece.text for piece in Corpus(tmp_path / "rows.jsonl").pieces()] == ["a", "b"]
