"""Documents from files: every format, any size, and clear words about what is no text."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.data import documents
from partita.data.documents import Corpus, Piece
from partita.errors import InputError

TEXT = "One.\nStill one.\n\nTwo, with ünïcödé.\n\n\n\nThree.\n"
PARAGRAPHS = ["One.\nStill one.", "Two, with ünïcödé.", "Three."]


def texts(corpus):
    """Whole documents, put together from their pieces."""
    result, open_text = [], ""
    for piece in corpus.pieces():
        open_text += piece.text
        if piece.ends:
            result.append(open_text)
            open_text = ""
    assert open_text == "", "the last document never ended"
    return result


def write(path: Path, data: bytes) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as stream:
        stream.write(data)
    return path


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
    (tmp_path / ".hidden").mkdir()
    for name, text in (("b/2.txt", "two"), ("a.txt", "one"), (".hidden/3.txt", "no"), (".4", "no")):
        (tmp_path / name).write_text(text)
    assert texts(Corpus(tmp_path)) == ["one", "two"]


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
        ("a.jsonl", b'{"text": "a"}\n{"text"', {}, "path", "line 2"),
        ("a.jsonl", b'{"body": "a"}', {}, "field", "it has: body"),
        ("a.jsonl", b"[1, 2]", {}, "field", "line 1"),
        ("a.jsonl", b'{"text": 3}', {}, "field", "no text"),
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
