"""Tokenizers, whatever their files hold, and the text that every machine has."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from partita.data.standard_library import reference_paragraphs
from partita.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    from_description,
)
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


def changed(**model):
    """The description of a tokenizer, with parts of its model replaced."""
    content = json.loads(BPE.backend.to_str())
    content["model"].update(model)
    return {"kind": "tokenizers", "json": json.dumps(content)}


@pytest.mark.parametrize(
    "description",
    [
        None,
        "bytes",
        ["kind", "bytes"],
        {},
        {"kind": ["bytes"]},
        {"kind": "characters"},
        {"kind": "characters", "alphabet": ["a", "b"]},
        {"kind": "characters", "alphabet": ""},
        {"kind": "tokenizers"},
        {"kind": "tokenizers", "json": {"version": "1.0"}},
        {"kind": "tokenizers", "json": ""},
        {"kind": "tokenizers", "json": "[" * 100_000},
        {"kind": "tokenizers", "json": '{"version": "1.0"}'},
        {"kind": "tokenizers", "json": "\ud800"},
        changed(vocab={}, merges=[]),
        changed(merges=[["a", "no such token"]]),
        changed(continuing_subword_prefix="longer than any token"),  # the library panics
    ],
)
def test_a_malformed_description_is_refused(description):
    with pytest.raises(InputError) as caught:
        from_description(description)
    assert caught.value.argument in ("tokenizer", "alphabet")
    assert "\n" not in str(caught.value)


VALUES = [None, True, -1, 0, 2**32 - 1, 2**40, 1e300, "", "BPE", [], {}, [[]], "\ud800"]


def mutated(value, choose):
    """A copy with one thing changed somewhere: left out, replaced, doubled."""
    if isinstance(value, dict) and value:
        key = list(value)[choose(len(value))]
        if choose(6) == 0:
            return {name: value[name] for name in value if name != key}
        return value | {key: mutated(value[key], choose)}
    if isinstance(value, list) and value and choose(6):
        place = choose(len(value))
        put = [[], [value[place]] * 2, [mutated(value[place], choose)]][choose(3)]
        return value[:place] + put + value[place + 1 :]
    return VALUES[choose(len(VALUES))]


@pytest.mark.parametrize("seed", range(300))
def test_mutated_descriptions_give_a_tokenizer_or_one_clear_error(seed):
    generator = np.random.default_rng(seed)
    content = mutated(json.loads(BPE.backend.to_str()), lambda n: int(generator.integers(n)))
    with suppress(InputError):
        tokenizer = from_description({"kind": "tokenizers", "json": json.dumps(content)})
        assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.encode("some text"))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_malformed_file(monkeypatch, interruption):
    def interrupt(_text):
        raise interruption

    description = BPE.describe()
    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_str=interrupt))
    monkeypatch.setattr("partita.data.tokenizers.tokenizers", library)
    with pytest.raises(interruption):
        from_description(description)


def test_settings_of_one_model_do_not_touch_the_text():
    """Files made for a model cut texts at its length, pad them, and put its special tokens in."""
    backend = tokenizers.Tokenizer.from_str(BPE.backend.to_str())
    backend.add_special_tokens(["[CLS]"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", BPE.vocab_size)]
    )
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    assert len(backend.encode("some longer text").ids) == 64
    tokenizer = BPETokenizer.from_json(backend.to_str())
    assert tokenizer.encode("some longer text") == BPE.encode("some longer text")


def test_ids_may_have_gaps():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 70_000}, "a"))
    tokenizer = BPETokenizer(backend)
    assert backend.get_vocab_size() == 2
    assert tokenizer.vocab_size == 70_001
    backend.add_tokens(["c"])
    assert tokenizer.vocab_size >= 70_001
    assert tokenizer.encode("b") == [70_000]
    assert tokenizer.decode([70_000, 5]) == "b"


def test_a_text_that_a_tokenizer_cannot_take():
    tokenizer = BPETokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "[UNK]")))
    with pytest.raises(InputError, match="cannot encode") as caught:
        tokenizer.encode("b")
    assert caught.value.argument == "tokenizer"
    assert CharacterTokenizer("\ud800").vocab_size == 1  # odd, but an alphabet


def byte_level(alphabet):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["to be or not to be"], trainer)
    return BPETokenizer(backend)


@pytest.mark.parametrize("text", ["Q", "to be Q", "QQ to be", "to bé", "to be\u2028or 7"])
def test_a_tokenizer_that_would_drop_characters_refuses_them(text):
    """A dropped character would cost nothing and count as scored, known or written."""
    lost = next(c for c in text if c not in "to ben r" and not c.isspace())
    with pytest.raises(InputError, match=f"the character {lost!r} is not in the tokenizer's voc"):
        byte_level([]).encode(text)
    whole = byte_level(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert whole.decode(whole.encode(text)) == text


def test_what_a_tokenizer_has_a_token_for_is_not_lost():
    assert byte_level([]).decode(byte_level([]).encode("to be  or")) == "to be  or"
    assert byte_level([]).encode("") == []
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert BPETokenizer(words).encode("to  be") == [0, 1]


@pytest.mark.parametrize("largest", [1 << 24, 1 << 31, (1 << 32) - 1])
def test_an_id_beyond_all_vocabularies_is_refused_before_room_is_made_for_it(largest):
    vocab = json.loads(BPE.backend.to_str())["model"]["vocab"]
    problem = f"its largest id is {largest:,}, and room is made for every smaller one; ids end at"
    with pytest.raises(InputError, match=problem) as caught:
        from_description(changed(vocab=vocab | {"far away": largest}))
    assert caught.value.argument == "tokenizer"
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": largest}, "a"))
    with pytest.raises(InputError, match=problem):
        _ = BPETokenizer(backend).vocab_size
    nearly = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": (1 << 24) - 1}, "a"))
    assert BPETokenizer(nearly).vocab_size == 1 << 24


def test_the_same_text_has_the_same_tokens_every_time():
    """Some files keep the chance with which merges were left out in training their model."""
    tokenizer = from_description(changed(dropout=0.9))
    text = " ".join(reference_paragraphs()[:5])
    assert tokenizer.encode(text) == BPE.encode(text)
    assert "0.9" not in tokenizer.describe()["json"]
