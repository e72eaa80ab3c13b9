"""Quality of texts: measures against values worked out by hand, the judge against its model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from partita.data import documents, frequencies
from partita.data.documents import Corpus
from partita.data.frequencies import corpus_entropy
from partita.data.shards import Shards, ShardWriter
from partita.data.tokenizers import ByteTokenizer, CharacterTokenizer
from partita.errors import InputError
from partita.evaluation import quality
from partita.evaluation.quality import (
    distinct,
    entropy_nats,
    judge,
    known_words,
    share_of_known_words,
    unigram_entropy,
    words_of,
)
from partita.methods import AR
from partita.networks import CausalTransformer, TransformerConfig

LENGTH = 8
LETTERS = CharacterTokenizer("abcd")


def judging(vocab_size=5, train=True):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=vocab_size, length=LENGTH, width=16, depth=2, heads=2)
    model = AR(CausalTransformer(config))
    for parameter in model.parameters() if train else ():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_entropy_inside_sequences():
    assert unigram_entropy([[7, 7, 7]]) == 0
    assert unigram_entropy([[0, 1, 2, 3]]) == pytest.approx(2)
    # 3/4 and 1/4: 2 - 3/4 log2 3; the mean with a sequence of none
    assert unigram_entropy([[5, 5, 9, 5], [1, 1]]) == pytest.approx((2 - 0.75 * math.log2(3)) / 2)
    assert unigram_entropy([[]]) == 0


def test_entropy_of_a_stream(tmp_path, monkeypatch):
    counts = np.array([8, 4, 2, 1, 1])
    tokens = np.repeat(np.array([0, 3, 4, 9, 7]), counts)
    assert corpus_entropy(tokens) == pytest.approx(15 / 8)  # sum of p log2 1/p
    monkeypatch.setattr(frequencies, "COUNTED", 3)
    np.random.default_rng(0).shuffle(tokens)
    assert corpus_entropy(tokens.astype(np.uint16)) == pytest.approx(15 / 8)
    assert corpus_entropy(iter([tokens[:5], tokens[5:5], tokens[5:].reshape(1, -1)])) == (
        pytest.approx(15 / 8)
    )
    assert corpus_entropy(np.zeros(4, dtype=np.uint8)) == 0
    with ShardWriter(tmp_path / "s", 10, {}, shard=3) as writer:
        writer.write(tokens)
    assert corpus_entropy(Shards.open(tmp_path / "s").arrays) == pytest.approx(15 / 8)


def test_distinct_n_grams():
    sequences = [[1, 2, 1, 2], [1, 2]]
    assert distinct(sequences, 1) == pytest.approx(2 / 6)
    assert distinct(sequences, 2) == pytest.approx(2 / 4)  # 12 21 12, 12: never across sequences
    assert distinct(sequences, 4) == 1
    assert distinct(sequences, 5) == 0
    assert distinct([["a", "b"], ["a", "b"]], 2) == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat sat.", ["the", "cat", "sat"]),
        ("don't 'quote' rock'n'roll'", ["don't", "quote", "rock'n'roll"]),
        ("DON’T", ["don't"]),
        ("snake_case x2y 3rd", ["snake", "case", "x", "y", "rd"]),
        ("ÉCOLE straße наука", ["école", "straße", "наука"]),
        ("10 m² and ½cup", ["m", "and", "cup"]),
        ("", []),
        ("12 '' --", []),
    ],
)
def test_words(text, words):
    assert list(words_of(text)) == words


@pytest.mark.parametrize("size", range(1, 12))
def test_a_word_cut_between_pieces_is_one_word(tmp_path, monkeypatch, size):
    text = "we don't know a word\nother documents"
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(documents, "PIECE", size)
    corpus = Corpus(tmp_path / "a.txt", documents="file")
    assert len(list(corpus.pieces())) > 3
    assert known_words(corpus) == set(words_of(text))


def test_a_document_ends_its_last_word(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert known_words(Corpus(tmp_path / "a.txt", documents="line")) == {"one", "two"}


def test_share_of_known_words():
    words = set(words_of("the cat sat on"))
    # "he" and "ma" touch the ends and are left out; of cat, sat, qat two are known
    assert share_of_known_words(["he cat sat, qat ma"], words) == pytest.approx(2 / 3)
    assert share_of_known_words(["he cat sat, qat ma"], words, cut_ends=False) == (
        pytest.approx(2 / 5)
    )
    # ends that are not inside a word cut none; all texts count together
    assert share_of_known_words([" cat ", ".qat qat."], words) == pytest.approx(1 / 3)
    assert share_of_known_words(["'t sit on don'"], words) == pytest.approx(1 / 2)  # sit, on
    assert share_of_known_words(["word", ""], words) == 0
    assert share_of_known_words(["cat"], {"cat"}, cut_ends=False) == 1


def test_an_untrained_judge_gives_every_token_the_same():
    """All logits are 0 and the start token is never said: V tokens are left."""
    texts = ["abcdabc", "d", "", "abcd" * 7]
    judgement = judge(judging(train=False), LETTERS, texts, batch_size=2)
    assert judgement.nats == pytest.approx(math.log(4), rel=1e-6)
    assert judgement.perplexity == pytest.approx(4, rel=1e-6)
    assert judgement.bits_per_character == pytest.approx(2, rel=1e-6)
    assert judgement.nats_error == pytest.approx(0, abs=1e-6)
    assert (judgement.texts, judgement.tokens, judgement.characters) == (4, 36, 36)


def nats_of(model, ids):
    """The definition: token by token, windows of the model's length, each after a start token."""
    total = 0.0
    for start in range(0, len(ids), LENGTH):
        window = ids[start : start + LENGTH]
        for place, token in enumerate(window):
            read = torch.tensor([[model.start_id, *window[:place]]])
            logits = model.network.extend(read, model.network.new_caches(1))
            total -= float(model.log_probabilities(logits)[0, token].detach())
    return total


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_judge_says_what_its_model_says(batch_size):
    model = judging()
    texts = ["abcd", "a", "", "ddabcabdadcb" * 2, "cab" * 5, "bbbbbbbb"]
    judgement = judge(model, LETTERS, texts, batch_size=batch_size)
    nats = np.array([nats_of(model, LETTERS.encode(text)) for text in texts])
    sizes = np.array([len(text) for text in texts])
    assert judgement.nats == pytest.approx(nats.sum() / sizes.sum(), rel=1e-5)
    assert judgement.bits_per_character == pytest.approx(judgement.nats / math.log(2))
    assert judgement.perplexity == pytest.approx(math.exp(judgement.nats))
    residuals = nats - nats.sum() / sizes.sum() * sizes
    error = math.sqrt(len(texts) * residuals.var(ddof=1)) / sizes.sum()
    assert judgement.nats_error == pytest.approx(error, rel=1e-4)
    assert judgement.perplexity_error == pytest.approx(judgement.perplexity * error, rel=1e-4)


def test_characters_are_not_tokens():
    judgement = judge(judging(257), ByteTokenizer(), ["é€", "ab"])
    assert (judgement.tokens, judgement.characters) == (7, 4)
    bits = judgement.nats * 7 / math.log(2)
    assert judgement.bits_per_character == pytest.approx(bits / 4)
    assert judgement.bits_per_character_error != judgement.nats_error / math.log(2)


def test_the_error_is_that_of_repeated_draws():
    """The delta method against the spread of the ratio over many sets of texts."""
    draws = np.random.default_rng(0)
    ratios, errors = [], []
    for _ in range(2000):
        sizes = draws.integers(5, 50, 100)
        amounts = sizes * draws.normal(2, 0.3, 100) + draws.normal(0, 3, 100)
        ratio, error = quality._ratio(amounts, sizes)
        ratios.append(ratio)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.06)


def test_one_text_has_no_spread():
    judgement = judge(judging(), LETTERS, ["abc"])
    assert math.isnan(judgement.nats_error)
    assert judgement.texts == 1


@pytest.mark.parametrize("train", [True, False])
def test_the_judge_stays_in_its_mode(train):
    model = judging().train(train)
    judge(model, LETTERS, ["abc"])
    assert model.training is train


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: unigram_entropy([]), "sequences"),
        (lambda: corpus_entropy(np.zeros(0, dtype=np.uint8)), "tokens"),
        (lambda: corpus_entropy(np.array([-1])), "tokens"),
        (lambda: corpus_entropy(np.array([0.5])), "tokens"),
        (lambda: distinct([[1]], 0), "n"),
        (lambda: judge(judging(), LETTERS, []), "texts"),
        (lambda: judge(judging(), LETTERS, ["", ""]), "texts"),
        (lambda: judge(judging(), LETTERS, "abc"), "texts"),
        (lambda: judge(judging(), LETTERS, ["abc"], batch_size=0), "batch_size"),
        (lambda: judge(judging(), ByteTokenizer(), ["abc"]), "tokenizer"),
        (lambda: judge(judging(), CharacterTokenizer("abcde"), ["abcde"]), "texts"),
        (lambda: judge(judging(), LETTERS, ["abx"]), "text"),
    ],
)
def test_bad_input(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument


def test_entropy_in_nats_with_its_error():
    """One text repeats a token, the other has four: 0 and ln 4."""
    mean, error = entropy_nats([[1, 1, 1, 1], [1, 2, 3, 4]])
    assert mean == pytest.approx(math.log(4) / 2)
    assert error == pytest.approx(math.log(4) / 2)
