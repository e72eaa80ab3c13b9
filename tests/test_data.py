"""Tokenizers and the text that every machine has."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.data.standard_library import reference_paragraphs
from partita.data.tokenizers import BPETokenizer, ByteTokenizer
from partita.errors import InputError

BPE = BPETokenizer.train(reference_paragraphs()[:50], 400)


@given(st.text())
def test_bytes_round_trip(text):
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_byte_pairs_round_trip(text):
    assert BPE.decode(BPE.encode(text)) == text


def test_vocabularies_leave_room_for_the_mask():
    assert ByteTokenizer().vocab_size == 256
    assert BPE.vocab_size == 400
    assert max(BPE.encode(" ".join(reference_paragraphs()[:20]))) < 400
    assert BPE.decode([*BPE.encode("a"), 400]) == "a"  # the mask is not text
    assert ByteTokenizer().decode([97, 256]) == "a"


def test_reference_is_prose_in_single_lines():
    paragraphs = reference_paragraphs()
    assert len(paragraphs) > 200
    assert len(set(paragraphs)) == len(paragraphs)
    assert not any("\n" in text for text in paragraphs)
    assert paragraphs == reference_paragraphs()


def test_a_python_without_its_reference_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError, match="pydoc_data"):
        reference_paragraphs()
