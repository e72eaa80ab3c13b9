"""`partita ngram`: the same numbers as `partita eval` and `partita accuracy`, for counted grams."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest

from partita.categorical import Decoding
from partita.commands import accuracy, main, ngram
from partita.data.documents import Corpus
from partita.data.scored_rows import token_stream
from partita.data.tokenizers import ByteTokenizer
from partita.evaluation.quality import unigram_entropy
from partita.evaluation.questions import words_inside
from partita.models.trained import load
from partita.studies.ngram import NGram
from partita.studies.steps import Quality, equal_quality

NOTES = "\n\n".join(f"note {n} is short, and so it says the näxt" for n in range(60))
SIZES = "--network.width 16 --network.depth 1 --network.heads 2 --network.length 24"
PACE = "--training.batch_size 4 --training.steps 2 --run.previews 0"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "notes.txt").write_text(NOTES)
    (folder / "test.txt").write_text("note 7 is short, and so it is näxt\n\n" * 9)
    for name, more in (("ar", "--method.name ar"), ("mdlm", "")):
        train = f"train {folder / 'notes.txt'} --out {folder / name} {SIZES} {PACE} {more}"
        words = f"{train} --tokenizer.name bpe --tokenizer.vocab_size 280"
        assert main(shlex.split(f"{words} --data.cache {folder / 'prepared'}")) == 0
    return folder


def counted(words, capsys):
    assert main(shlex.split(f"ngram {words} --json")) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("limit", [None, 100, 3])
def test_a_corpus_as_one_row(place, limit):
    tokenizer = ByteTokenizer()
    tokens, characters, size = token_stream(Corpus(place / "test.txt"), tokenizer, limit)
    whole = ("note 7 is short, and so it is näxt\n\n" * 9).encode()[:limit]
    assert bytes(tokens.tolist()) == whole
    assert (characters, size) == (len(whole.decode()), len(whole))
    assert tokens.dtype == np.uint16


@pytest.mark.usefixtures("here")
def test_the_likelihood_of_a_text(capsys):
    results = counted("notes.txt --test test.txt --order 3 --out out.json", capsys)
    assert results == json.loads(Path("out.json").read_text())
    found = results["likelihood"]
    train = token_stream(Corpus("notes.txt"), ByteTokenizer()).tokens
    test, characters, _ = token_stream(Corpus("test.txt"), ByteTokenizer())
    bits = -NGram.train(train, 256, 3).log_probs(test[None]).sum() / math.log(2)
    assert found["bits_per_byte"] == found["bits_per_token"] == pytest.approx(bits / len(test))
    assert found["bits_per_character"] == pytest.approx(bits / characters)
    assert found["perplexity"] == pytest.approx(2 ** (bits / len(test)))
    assert found["exact"]
    assert {"date", "device", "torch"} <= set(results["environment"])
    assert results["model"]["tokens"] == len(train)
    less = counted("notes.txt --test test.txt --order 3 --limit 200", capsys)
    assert less["model"]["tokens"] == 200
    assert less["likelihood"]["bits_per_byte"] > found["bits_per_byte"]


@pytest.mark.usefixtures("here")
def test_blanks_are_those_of_accuracy(capsys, monkeypatch):
    seen = []

    def remembering(place, name):
        asked = getattr(place, name)

        def remembered(model, blanks, *more, **options):
            seen.append(blanks)
            return asked(model, blanks, *more, **options)

        monkeypatch.setattr(place, name, remembered)

    remembering(ngram, "left_answers")
    remembering(accuracy, "answered")
    words = "test.txt --count 7 --seed 3"
    results = counted(f"notes.txt --tokenizer mdlm --infill {words}", capsys)
    assert results["infill"]["left_side"]["count"] == 7
    assert 0 <= results["infill"]["both_sides"]["accuracy"] <= 1
    assert main(shlex.split(f"accuracy mdlm {words} --task infill")) == 0
    assert seen[0] == seen[1]
    model = load("mdlm")
    assert seen[0] == words_inside(Corpus("test.txt"), model.tokenizer, 24, 7, seed=3).blanks


@pytest.mark.usefixtures("here")
def test_samples_are_judged_as_those_of_a_model(capsys):
    words = "notes.txt --tokenizer mdlm --samples 4 --judge ar --seed 2"
    found = counted(words, capsys)["samples"]
    model, judge = load("mdlm"), load("ar")
    train = token_stream(Corpus("notes.txt"), model.tokenizer).tokens
    grams = NGram.train(train, model.tokenizer.vocab_size, 5)
    texts = model.decode(grams.sample(4, 24, seed=2))
    bits = sum(judge.score(text).bits for text in texts) / sum(map(len, texts))
    assert found["judge"]["bits_per_character"] == pytest.approx(bits, rel=1e-4)
    ids = [model.tokenizer.encode(text) for text in texts]
    assert found["unigram_entropy_bits"] == pytest.approx(unigram_entropy(ids))
    assert found["known_words"] > 0.5
    assert main(shlex.split(f"ngram {words} --infill test.txt --last_word test.txt")) == 0
    shown = capsys.readouterr().out
    for part in ("5-grams", "accuracy by both sides", "last-word", "judge's perplexity"):
        assert part in shown


@pytest.mark.usefixtures("here")
def test_samples_are_drawn_as_those_of_a_model_may_be(capsys):
    words = "notes.txt --tokenizer mdlm --samples 4 --seed 2"
    found = counted(f"{words} --temperature 0.5 --top_p 0.9", capsys)["samples"]
    model = load("mdlm")
    train = token_stream(Corpus("notes.txt"), model.tokenizer).tokens
    grams = NGram.train(train, model.tokenizer.vocab_size, 5)
    texts = model.decode(grams.sample(4, 24, seed=2, decoding=Decoding(0.5, top_p=0.9)))
    ids = [model.tokenizer.encode(text) for text in texts]
    assert found["unigram_entropy_bits"] == pytest.approx(unigram_entropy(ids))
    assert (found["temperature"], found["top_k"], found["top_p"]) == (0.5, None, 0.9)
    assert (
        found["unigram_entropy_bits"] != counted(words, capsys)["samples"]["unigram_entropy_bits"]
    )


@pytest.mark.usefixtures("here")
def test_models_are_compared_as_they_are_told_to_write(capsys):
    told = "--steps [4] --samples 3 --seed 2 --sampler confidence --options.counts linear"
    words = f"compare mdlm --judge ar {told} --temperature 0.5 --json"
    assert main(shlex.split(words)) == 0
    found = json.loads(capsys.readouterr().out)
    settings = {"sampler": "confidence", "temperature": 0.5, "counts": "linear"}
    assert found["sampling"] == settings
    texts = load("mdlm").sample(3, seed=2, steps=4, **settings)
    judge = load("ar")
    bits = sum(judge.score(text).bits for text in texts) / sum(map(len, texts))
    assert found["rows"][0]["judge_bits"] == pytest.approx(bits, rel=1e-4)
    ids = [judge.tokenizer.encode(text) for text in texts]
    entropy = unigram_entropy(ids) * math.log(2)
    assert found["rows"][0]["entropy_nats"] == pytest.approx(entropy)


@pytest.mark.usefixtures("here")
def test_speeds_at_equal_quality_are_told(capsys):
    words = "compare mdlm --judge ar --schedules [linear,cosine] --steps [1,2,6] --samples 4"
    assert main([*shlex.split(words), "--out", "compared.json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(Path("compared.json").read_text())
    rows = [Quality(**row) for row in found["rows"]]
    first, other = ([r for r in rows if r.model == f"mdlm, {s}"] for s in ("linear", "cosine"))
    told = equal_quality(other, first)
    assert found["equal_quality"] == [vars(one) for one in told]
    assert shown.count("mdlm, linear in") == len(told) == 3
    assert shown.count("As good as") > 0  # in one step, where schedules are alike


@pytest.mark.usefixtures("here")
def test_the_alphabet_of_text8(capsys):
    Path("plain.txt").write_text("the cat sat on the mat " * 40)
    words = "plain.txt --tokenizer text8 --test plain.txt --infill plain.txt --length 20"
    results = counted(words, capsys)
    assert results["likelihood"]["bits_per_character"] < 1.5
    assert results["infill"]["both_sides"]["accuracy"] > 0.7
