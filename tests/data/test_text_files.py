"""Text on a bad day: marks, other encodings, bombs, lines without end, pipes."""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.commands import main
from partita.data import row_files, text_files
from partita.data.documents import Corpus
from partita.data.long_words import LONGEST, without_long_words
from partita.data.prepare import PrepareOptions, cache_key, prepare
from partita.data.text_files import decoded, unpacked
from partita.data.tokenizers import BPETokenizer
from partita.errors import InputError
from tests.support.texts import texts, write


def refused(path, **options):
    """The error that reading a file ends in."""
    with pytest.raises(InputError) as caught:
        texts(Corpus(path, **options))
    assert caught.value.argument == "path"
    assert str(path) in str(caught.value)
    return str(caught.value)


# Marks and encodings -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".txt.zst"])
def test_the_mark_of_utf8_is_no_text(tmp_path, suffix):
    data = b'{"text": "caf\xc3\xa9"}' if suffix == ".jsonl" else b"caf\xc3\xa9"
    marked = codecs.BOM_UTF8 + data
    path = tmp_path / f"a{suffix}"
    if suffix == ".txt.zst":
        import zstandard

        path.write_bytes(zstandard.compress(marked))
    else:
        write(path, marked)
    assert texts(Corpus(path)) == ["café"]


def test_a_mark_inside_of_a_text_stays(tmp_path):
    """There it is a character, with which a text may begin again."""
    path = write(tmp_path / "a.txt", 2 * (codecs.BOM_UTF8 + b"a"))
    assert texts(Corpus(path)) == ["a\ufeffa"]
    assert texts(Corpus(write(tmp_path / "b.txt", codecs.BOM_UTF8))) == []


def test_tokens_of_a_marked_file_that_were_made_with_its_mark_are_not_served_again(tmp_path):
    """The key of files without a mark is what it was; with one it is another."""
    plain, marked = (
        write(tmp_path / f"{n}.txt", mark + b"text")
        for n, mark in (("plain", b""), ("marked", codecs.BOM_UTF8))
    )
    [(_, content)] = Corpus(plain).identity()
    assert len(content) == 32
    [(_, content)] = Corpus(marked).identity()
    assert len(content) > 32
    prepared = prepare(Corpus(marked), tmp_path / "cache", PrepareOptions(valid=0))
    assert bytes(prepared.train.read(0, 4).tolist()) == b"text"
    assert cache_key(Corpus(plain), PrepareOptions()) != cache_key(Corpus(marked), PrepareOptions())


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        ("utf-16", "is UTF-16, and UTF-8 is read; convert it first, such as by iconv -f UTF-16"),
        ("utf-32", "is UTF-32, and UTF-8 is read; .* iconv -f UTF-32"),
        ("utf-16-le", "seems to be UTF-16LE, and UTF-8 is read; .* iconv -f UTF-16LE"),
        ("utf-16-be", "seems to be UTF-16BE, and UTF-8 is read; .* iconv -f UTF-16BE"),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_other_encodings_are_named(tmp_path, encoding, word, suffix):
    path = write(tmp_path / f"a{suffix}", '{"text": "Some ordinary text."}'.encode(encoding))
    with pytest.raises(InputError, match=word):
        texts(Corpus(path))


@given(st.text(st.sampled_from("aé€😀\n"), max_size=20), st.integers(1, 9), st.booleans())
def test_a_byte_that_is_no_utf8_is_named_with_its_place(tmp_path_factory, text, size, marked):
    before = codecs.BOM_UTF8 * marked + text.encode()
    path = write(tmp_path_factory.mktemp("a") / "a.txt", before + b"\xe9 and more")
    with pytest.raises(InputError, match=rf"UTF-8 near byte {len(before)} \(0xe9\); .* LATIN1"):
        list(decoded(path, size))
    path.write_bytes(before + b"\xf0\x9f")  # the beginning of a character that never comes
    with pytest.raises(InputError, match=rf"UTF-8 near byte {len(before)} \(0xf0\)"):
        list(decoded(path, size))


def test_a_zero_is_named_with_its_place(tmp_path):
    path = write(tmp_path / "a.txt.gz", b"\xef\xbb\xbf" + b"x" * 5000 + b"\0" + b"x" * 5000)
    assert "is a binary file: it has a zero at byte 5,003" in refused(path)


@pytest.mark.parametrize("text", [" \n\t\n\n  \n", "\u2003\u00a0"])
@pytest.mark.parametrize("documents", ["paragraph", "line", "file"])
def test_white_space_alone_is_nothing_to_learn_from(tmp_path, capsys, text, documents):
    path = write(tmp_path / "a.txt", text.encode())
    words = ["prepare", str(path), "--data.cache", str(tmp_path / "cache")]
    assert main([*words, "--data.documents", documents]) == 2
    assert "a.txt holds n" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
    path.write_text(f"{text}x{text}")
    assert main([*words, "--data.documents", documents]) == 0


# Bombs and lines without end ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "size"), [(".gz", 1 << 25), (".xz", 1 << 25), (".zst", 1 << 27)]
)
def test_a_bomb_is_unpacked_piece_by_piece(tmp_path, suffix, size):
    import zstandard

    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(b"x" * size))
    sizes = [len(chunk) for chunk in unpacked(path, 1 << 20)]
    assert sum(sizes) == size
    assert max(sizes) <= size // 4


def test_frames_that_hold_little_or_nothing_come_in_large_chunks(tmp_path):
    import zstandard

    path = write(tmp_path / "a.zst", b"")
    path.write_bytes(b"".join(map(zstandard.compress, [b"", b"ab", b""] * 1000)))
    assert [len(chunk) for chunk in unpacked(path, 500)] == [500, 500, 500, 500]


def test_a_line_without_end_is_refused_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LONGEST_LINE", 1000)
    monkeypatch.setattr(row_files, "PIECE", 16)
    long = write(tmp_path / "long.jsonl", b'{"text": "a"}\n{"text": "' + b"x" * 5000)
    assert "line 2 has more than 1,000 characters; make several rows of it" in refused(long)
    fits = write(tmp_path / "fits.jsonl", b'{"text": "a"}\n{"text": "' + b"x" * 900 + b'"}')
    assert texts(Corpus(fits)) == ["a", "x" * 900]


def test_a_long_line_is_put_together_once(tmp_path, monkeypatch):
    """What is read of a line is not copied with each piece: that took hours for 64 MiB."""
    monkeypatch.setattr(row_files, "PIECE", 8)
    long = "x" * 300_000
    path = write(tmp_path / "a.jsonl", json.dumps({"text": long}).encode() + b'\n{"text": "b"}')
    assert texts(Corpus(path)) == [long, "b"]


def test_rows_of_parquet_without_end(tmp_path, monkeypatch):
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr(row_files, "LONGEST_LINE", 1000)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 1000]}), path)
    assert texts(Corpus(path)) == ["x" * 1000]
    for rows in (["x"] * 9 + ["x" * 1001], ["x" * 9000]):
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path)
        assert "has rows of more than 1,000 characters" in refused(path)
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", None)  # not even unpacked
    assert "has rows of more than 1,000 characters" in refused(path)


# Words without end -------------------------------------------------------------------------------


def test_ordinary_words_are_learned_from_as_they_stand():
    ordinary = ["Some words, 12 of them.\n\n" * 200, "", "x" * (LONGEST - 1) + " y", "汉" * 900]
    assert list(without_long_words(ordinary)) == [text for text in ordinary if text]


@pytest.mark.parametrize("kind", ["letters", "1234567890", " \n\t", "-=_+", "汉字"])
def test_words_without_end_are_cut_and_bounded(kind, monkeypatch):
    monkeypatch.setattr("partita.data.long_words.MOST", 8 * LONGEST)
    word = (kind * (20 * LONGEST))[: 20 * LONGEST]
    parts = list(without_long_words(["before; ", f"one {word};after", word[: 3 * LONGEST]]))
    assert "".join(parts[:10]) == ("before; " + f"one {word}")[: sum(map(len, parts[:10]))]
    assert max(map(len, parts)) < 2 * LONGEST
    assert sum(len(part) for part in parts) < 11 * LONGEST
    assert parts[-1].endswith(";after") or kind in parts[-2]


def test_a_tokenizer_learns_from_a_word_without_end():
    """Without the bound this takes hours, since every merge goes through all of the word."""
    genome = "".join("ACGT"[(n * n // 7 + n // 3) % 4] for n in range(200_000))
    tokenizer = BPETokenizer.train(genome, 300)
    assert tokenizer.vocab_size == 300
    some = genome[:5000]
    assert tokenizer.decode(tokenizer.encode(some)) == some
    assert len(tokenizer.encode(some)) < 2500


# Pipes -------------------------------------------------------------------------------------------


def test_devices_are_no_texts():
    with pytest.raises(InputError, match="neither a file nor a folder"):
        Corpus("/dev/zero")


def test_what_is_unpacked_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no file"):
        next(text_files.unpacked(tmp_path / "pipe", 10))


FLIPS = """
import sys
from pathlib import Path
from pyarrow import Table, parquet
from partita.data.row_files import parquet_texts
from partita.errors import InputError

rows = [{"text": f"note {i} is short", "kind": "ab"[i % 2]} for i in range(30)]
whole, damaged = Path("whole.parquet"), Path("damaged.parquet")
parquet.write_table(Table.from_pylist(rows), whole, write_page_checksum=True)
for place, byte in enumerate(whole.read_bytes()):
    for change in (1, 255):
        data = bytearray(whole.read_bytes())
        data[place] = byte ^ change
        damaged.write_bytes(data)
        try:
            list(parquet_texts(damaged, "text", None))
        except InputError:
            pass
print("no other error")
"""


def test_no_damage_of_a_parquet_file_ends_the_program(tmp_path):
    """The library that reads them aborts the process at some damaged fields."""
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", FLIPS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "no other error\n"), done.stderr
