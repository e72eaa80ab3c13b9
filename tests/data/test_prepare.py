"""Preparation: the right tokens, from the cache only when nothing changed, all or nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tokenizers

from partita.commands import main
from partita.data.documents import Corpus
from partita.data.prepare import Prepared, PrepareOptions, cache_key, prepare
from partita.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    from_description,
)
from partita.errors import InputError
from tests.support.preparing import calling

DOCUMENTS = [f"document number {n}, which says nothing new" for n in range(200)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(DOCUMENTS))
    return Corpus(path)


def documents(part, tokenizer):
    start, result = 0, []
    for end in part.ends.tolist():
        result.append(tokenizer.decode(part.read(start, end).tolist()))
        start = end
    return result


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_every_document_is_whole_and_on_one_side(tmp_path, corpus, name):
    prepared = prepare(corpus, tmp_path / "cache", PrepareOptions(name, vocab_size=300, valid=0.2))
    train = documents(prepared.train, prepared.tokenizer)
    valid = documents(prepared.valid, prepared.tokenizer)
    assert sorted(train + valid) == sorted(text + "\n\n" for text in DOCUMENTS)
    share = len(prepared.valid) / (len(prepared.train) + len(prepared.valid))
    assert share == pytest.approx(0.2, abs=0.01)
    assert len(prepared.train) + len(prepared.valid) == sum(
        len(prepared.tokenizer.encode(text + "\n\n")) for text in DOCUMENTS
    )


@pytest.mark.parametrize("name", ["bpe", "bytes"])
def test_how_much_is_tokenised_at_once_does_not_matter(tmp_path, corpus, name, monkeypatch):
    options = PrepareOptions(tokenizer=name, vocab_size=300)
    whole = prepare(corpus, tmp_path / "whole", options)
    monkeypatch.setattr("partita.data.prepare.AT_ONCE", 40)
    pieces = prepare(corpus, tmp_path / "pieces", options)
    for one, other in ((whole.train, pieces.train), (whole.valid, pieces.valid)):
        assert len(one) == len(other)
        assert one.read(0, len(one)).tolist() == other.read(0, len(other)).tolist()


def test_several_texts_have_the_tokens_of_each():
    texts = ["the cat sat", "", "on the mat, déjà vu", "\u00e9\U0001f600 \n\t"]
    tokenizer = BPETokenizer.train(texts, 280)
    assert [x.tolist() for x in tokenizer.encode_arrays(texts)] == [*map(tokenizer.encode, texts)]


def test_the_cache_serves_what_did_not_change(tmp_path, corpus):
    cache = tmp_path / "cache"
    first = prepare(corpus, cache)
    again = prepare(corpus, cache)
    assert (first.fresh, again.fresh) == (True, False)
    assert first.folder == again.folder
    assert [path.name for path in cache.iterdir()] == [first.folder.name]


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": "characters"},
        {"tokenizer": "bpe"},
        {"valid": 0.1},
        {"vocab_size": 512},
    ],
)
def test_every_option_changes_the_key(corpus, change):
    options = PrepareOptions()
    assert cache_key(corpus, options) != cache_key(corpus, replace(options, **change))


def test_contents_and_names_change_the_key(tmp_path, corpus):
    before = cache_key(corpus, PrepareOptions())
    corpus.path.write_text(corpus.path.read_text().replace("new", "old"))
    assert cache_key(corpus, PrepareOptions()) != before
    assert cache_key(replace(corpus, documents="line"), PrepareOptions()) != before
    saved = tmp_path / "tokenizer.json"
    BPETokenizer.train("some text", 260).backend.save(str(saved))
    keys = {cache_key(corpus, PrepareOptions(str(saved)))}
    BPETokenizer.train("another text", 261).backend.save(str(saved))
    keys.add(cache_key(corpus, PrepareOptions(str(saved))))
    assert len(keys) == 2


def test_an_interrupted_preparation_leaves_nothing(tmp_path, corpus):
    def interrupt(_read):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tmp_path / "cache", callback=calling(on_prepare=interrupt))
    assert not (tmp_path / "cache").exists()
    assert prepare(corpus, tmp_path / "cache").fresh


def test_text8_is_one_document_of_27_symbols(tmp_path):
    path = tmp_path / "text8"
    path.write_text("anarchism originated as a term")
    prepared = prepare(
        Corpus(path, documents="file"), tmp_path / "cache", PrepareOptions("text8", valid=0)
    )
    assert prepared.tokenizer.vocab_size == 27
    tokens = prepared.train.read(0, len(prepared.train)).tolist()
    assert tokens[:3] == [0, 13, 0]
    assert tokens[9] == 26
    assert prepared.tokenizer.decode(tokens) == path.read_text()


@pytest.mark.parametrize(
    "tokenizer", [ByteTokenizer(), CharacterTokenizer("abc "), BPETokenizer.train("abcabc", 260)]
)
def test_a_tokenizer_survives_its_description(tokenizer):
    again = from_description(tokenizer.describe())
    assert again.encode("abc cab") == tokenizer.encode("abc cab")
    assert again.encode_array("abc cab").tolist() == tokenizer.encode("abc cab")
    assert again.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda path: prepare(Corpus(path), path.parent, PrepareOptions("gpt9")), "tokenizer"),
        (lambda path: prepare(Corpus(path), path.parent, PrepareOptions(str(path))), "tokenizer"),
        (lambda path: prepare(Corpus(path), path.parent, PrepareOptions("text8")), "documents"),
        (lambda _: PrepareOptions(valid=1.0), "valid"),
        (lambda _: PrepareOptions(vocab_size=3), "vocab_size"),
        (lambda path: Prepared.open(path.parent), "folder"),
        (lambda path: prepare(Corpus(path), path.parent, PrepareOptions("x" * 5000)), "tokenizer"),
        (lambda _: CharacterTokenizer("aa"), "alphabet"),
        (lambda _: from_description({"kind": "runes"}), "tokenizer"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, call, argument):
    path = tmp_path / "a.txt"
    path.write_text("Some text, with A CAPITAL.")
    with pytest.raises(InputError) as caught:
        call(path)
    assert caught.value.argument == argument
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"[]", b'{"kind": "x"}'])
def test_a_damaged_tokenizer_of_a_prepared_corpus(tmp_path, corpus, content):
    prepared = prepare(corpus, tmp_path / "cache")
    (prepared.folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError):
        prepare(corpus, tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_tokenizer_file_is_named(tmp_path, corpus, content):
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.json") as caught:
        prepare(corpus, tmp_path / "cache", PrepareOptions(str(path)))
    assert caught.value.argument == "tokenizer"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("valid", [0.01, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["paragraph", "line", "file"])
def test_a_single_document_is_for_training(tmp_path, kind, valid):
    path = tmp_path / "a.txt"
    path.write_text("the only document")
    corpus = Corpus(path, documents=kind)
    prepared = prepare(corpus, tmp_path / "cache", PrepareOptions(valid=valid))
    assert documents(prepared.train, prepared.tokenizer)[0].startswith("the only document")
    assert len(prepared.valid) == 0
    assert prepared.valid.ends.tolist() == []


def test_documents_without_tokens_do_not_empty_the_training_part(tmp_path):
    """A tokenizer may take everything out of the first documents; the next is for training."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0}, "word"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("\t\n\n \n\nword")
    options = PrepareOptions(str(tmp_path / "words.json"), valid=0.9)
    prepared = prepare(Corpus(tmp_path / "a.txt"), tmp_path / "cache", options)
    assert (len(prepared.train), len(prepared.valid)) == (1, 0)


def test_an_empty_file_holds_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(InputError, match="holds no text"):
        prepare(Corpus(tmp_path / "a.txt"), tmp_path / "cache")


def test_the_verb(tmp_path, corpus, capsys):
    words = ["prepare", str(corpus.path), "--data.cache", str(tmp_path / "cache")]
    assert main(words) == 0
    assert "tokens for training" in capsys.readouterr().out
    assert main(words) == 0
    assert "Nothing changed" in capsys.readouterr().out
    assert main(["prepare", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_name_of_a_file_does_not_matter_but_its_kind_does(tmp_path, corpus):
    for name, same in (("renamed.txt", True), ("renamed.jsonl", False)):
        other = tmp_path / name
        other.write_bytes(corpus.path.read_bytes())
        key = cache_key(Corpus(other), PrepareOptions())
        assert (key == cache_key(corpus, PrepareOptions())) is same


def test_the_tokenizer_of_a_model_of_ours_is_a_tokenizer(tmp_path, corpus):
    own = CharacterTokenizer.train([corpus.path.read_text()])
    (tmp_path / "own.json").write_text(json.dumps(own.describe()))
    prepared = prepare(corpus, tmp_path / "cache", PrepareOptions(str(tmp_path / "own.json")))
    assert prepared.tokenizer.describe() == own.describe()
