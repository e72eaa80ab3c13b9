"""`partita ngram`: an n-gram model of a text, as a baseline for trained models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table

from partita.categorical import Decoding
from partita.commands.accuracy import BLANKS, add_bits
from partita.commands.parsing import Shared, flags_of, reader
from partita.commands.terminal import Terminal, deliver, passing_bar
from partita.data.documents import Corpus
from partita.data.scored_rows import token_stream
from partita.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from partita.errors import naming, require, require_int, require_ints
from partita.evaluation.quality import (
    Identified,
    described,
    known_words,
    load_identified,
    load_judge,
    written,
)
from partita.evaluation.questions import Questions, blank_results, last_words, words_inside
from partita.files.atomic import check_file
from partita.modalities.base import heading, spread
from partita.modalities.text_evaluation import add_likelihood, add_samples
from partita.provenance import environment
from partita.studies.ngram import LONGEST, NGram
from partita.studies.ngram_blanks import BEAM, both_sides, left_answers

LENGTH = 256  # tokens of windows and samples, if no model determines it
ASKING = ("infill", "last_word")  # flags of files with questions


@dataclass(frozen=True, kw_only=True)
class Options(Shared):
    """Options of `partita ngram`."""

    train: str
    tokenizer: str = "bytes"
    """bytes, text8, or a model whose tokenizer and length are used."""
    order: int = 5
    """Tokens of the longest n-gram."""
    limit: int | None = None
    """Number of tokens of the text to count; all unless given."""
    test: str | None = None
    """A text to measure the likelihood of."""
    infill: str | None = None
    """A text whose words are hidden, as in partita accuracy --task infill."""
    last_word: str | None = None
    """A file of passages, as for partita accuracy --task last-word."""
    count: int | None = None
    """Number of words to hide (by default 1000), and of passages (by default all)."""
    beam: int = BEAM
    """Width of the beam search that fills in blanks of several tokens."""
    samples: int = 0
    """Number of texts to write."""
    temperature: float = 1.0
    """For samples: divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """For samples: keep the k most probable tokens."""
    top_p: float | None = None
    """For samples: keep the most probable tokens until their probabilities add up to p."""
    judge: str | None = None
    """An autoregressive model that judges the samples."""
    length: int | None = None
    """Tokens of a window and of a sample; by default the length of the model, or 256."""
    out: str | None = None
    """A JSON file to write the results to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.order, "--order", 1, LONGEST)
        require_ints(self, "--", limit=1, length=3, count=2, beam=1, samples=0)
        with naming(flags_of(Options, "train")):
            _ = self.decoding
        wanted = (self.test, self.infill, self.last_word, self.samples or None)
        remedy = "give --test, --infill, --last_word or --samples"
        some = any(value is not None for value in wanted)
        require(some, "train", "there is nothing to do with the counts", remedy)
        needed = self.judge is None or self.samples > 0
        require(needed, "--judge", "there are no samples to look at", "give --samples")
        check_file(self.out, "--out")

    @property
    def decoding(self) -> Decoding:
        """How the tokens of samples are drawn."""
        return Decoding(self.temperature, self.top_k, self.top_p)


options = reader(
    "ngram",
    "Count the n-grams of a text (interpolated modified Kneser-Ney) and measure this baseline\n"
    "with the metrics of partita eval and partita accuracy: the likelihood of a text (exact),\n"
    "how often it predicts a hidden word (from both sides, and from the left one alone), and\n"
    "the quality of its texts. A model that does not beat it has learned little.\n"
    "The hidden words are those of partita accuracy --task infill with the same tokenizer,\n"
    "--length, --count and --seed.",
    [
        "partita ngram notes.txt --test test.txt",
        "partita ngram notes.txt --tokenizer runs/notes-mdlm --infill test.txt --count 500",
        "partita ngram notes.txt --order 3 --samples 64 --judge runs/judge --out trigrams.json",
        "partita ngram notes.txt --samples 64 --judge runs/judge --temperature 0.8",
    ],
    Options,
    train="a text to count: any that `partita train` reads",
)


def run(words: Sequence[str]) -> None:
    """Count the n-grams, measure, print the results."""
    chosen = options(words)
    with naming(flags_of(Options, "train")):
        study = _Study(chosen)
        examiner = None if chosen.judge is None else load_judge(chosen.judge, chosen.device)
    corpus = study.corpus(chosen.train, "train")
    files = {
        flag: study.corpus(path, f"--{flag}")
        for flag in ("test", *ASKING)
        if (path := getattr(chosen, flag)) is not None
    }
    asked = {flag: study.questions(flag, files[flag]) for flag in ASKING if flag in files}
    device = torch.device("cpu") if examiner is None else examiner[0].device
    console = Terminal(stderr=chosen.json)
    with passing_bar(console) as bar:
        model, facts = study.counted(corpus, bar)
        results = {"model": facts, "environment": environment(device), "seed": chosen.seed}
        if "test" in files:
            results["likelihood"] = study.likelihood(model, files["test"])
        for flag, questions in asked.items():
            results[flag] = study.answers(model, flag, questions, bar)
        if chosen.samples:
            results["samples"] = study.samples(model, corpus, examiner, bar)
    deliver(console, results, table, chosen.out, as_json=chosen.json)


class _Study:
    """The tokenizer, how text files are read, and what is measured with them."""

    def __init__(self, chosen: Options) -> None:
        """The tokenizer by its name, or a model's tokenizer with its length and text settings."""
        self.chosen, self.length = chosen, chosen.length or LENGTH
        self.tokenizer: Tokenizer
        self.field, self.documents = "text", "paragraph"
        if chosen.tokenizer == "bytes":
            self.tokenizer = ByteTokenizer()
        elif chosen.tokenizer == "text8":
            self.tokenizer, self.documents = CharacterTokenizer(), "file"  # has no line breaks
        else:
            with naming({"model": "--tokenizer"}):
                model, _ = load_identified(chosen.tokenizer, "cpu")
            data = model.recipe.data
            self.tokenizer, self.length = model.tokenizer, chosen.length or model.length
            self.field, self.documents = data.field, data.documents

    def corpus(self, path: str, name: str) -> Corpus:
        with naming({"path": name}):
            return Corpus(path, self.field, self.documents)

    def questions(self, flag: str, corpus: Corpus) -> Questions:
        setting, count = (corpus, self.tokenizer, self.length), self.chosen.count
        with _reading(f"--{flag}"):
            if flag == "last_word":
                return last_words(*setting, count)
            return words_inside(*setting, count or BLANKS, self.chosen.seed)

    def counted(self, corpus: Corpus, bar: Progress) -> tuple[NGram, dict[str, Any]]:
        """The n-gram model, and the facts of its training text."""
        chosen, size = self.chosen, self.tokenizer.vocab_size
        task = bar.add_task("counting", total=1.0)
        with _reading("train"), naming({"tokens": "train", "order": "--order"}):
            tokens = token_stream(corpus, self.tokenizer, chosen.limit).tokens
            model = NGram.train(
                tokens, size, chosen.order, lambda share: bar.update(task, completed=share)
            )
        return model, {
            "train": chosen.train,
            "sha256": [content.hex() for _, content in corpus.identity()],
            "tokenizer": chosen.tokenizer,
            "order": chosen.order,
            "tokens": len(tokens),
            "grams": [len(level.keys) for level in model.levels],
        }

    def likelihood(self, model: NGram, corpus: Corpus) -> dict[str, Any]:
        """The exact likelihood of a text, as one sequence that is not cut into windows."""
        with _reading("--test"):
            tokens, characters, size = token_stream(corpus, self.tokenizer)
        bits = model.stream_nats(tokens) / math.log(2)
        sizes = {"character": characters, "byte": size, "token": len(tokens)}
        each = {f"bits_per_{name}": bits / size for name, size in sizes.items()}
        each["perplexity"] = 2 ** each["bits_per_token"]
        facts = {"file": self.chosen.test, "exact": True, "tokens": len(tokens)}
        errors = {f"{name}_error": 0.0 for name in each}
        return facts | {"characters": characters, **each, **errors}

    def answers(
        self, model: NGram, flag: str, questions: Questions, bar: Progress
    ) -> dict[str, Any]:
        """Answers from the left side, as by an autoregressive model; infill also from both."""
        blanks, inside = questions.blanks, flag == "infill"
        task = bar.add_task(flag.replace("_", " "), total=len(blanks) * (2 if inside else 1))
        advance = partial(bar.advance, task)
        left = blank_results(left_answers(model, blanks, advance), blanks)
        facts = {"cut": questions.cut, "left_out": questions.left_out}
        results = {"file": getattr(self.chosen, flag), **facts, "left_side": left}
        if inside:
            beam = self.chosen.beam
            results["both_sides"] = both_sides(model, blanks, beam=beam, progress=advance)
        return results

    def samples(
        self, model: NGram, corpus: Corpus, examiner: Identified | None, bar: Progress
    ) -> dict[str, Any]:
        """Write texts, and measure them as `partita eval` does."""
        chosen = self.chosen
        task = bar.add_task("samples", total=chosen.samples)

        def write(count: int, first: int) -> list[str]:
            place = {"seed": chosen.seed, "first": first}
            tokens = model.sample(count, self.length, **place, decoding=chosen.decoding)
            return [self.tokenizer.decode(row) for row in tokens.tolist()]

        texts = written(chosen.samples, write, partial(bar.advance, task))
        words = known_words(corpus)
        return vars(chosen.decoding) | described(
            texts, self.tokenizer, words, examiner, cut_ends=True
        )


def _reading(name: str) -> AbstractContextManager[None]:
    """Errors in a file are reported under the flag that gives it."""
    return naming(dict.fromkeys(("path", "field", "text", "file"), name))


def table(results: dict[str, Any]) -> Table:
    """The results as a table."""
    shown, model = Table("", "", show_header=False), results["model"]
    counted = f"{model['tokens']:,} tokens, {sum(model['grams']):,} grams"
    shown.add_row(heading(f"{model['order']}-grams"), f"{model['train']}: {counted}")
    if "likelihood" in results:
        add_likelihood(shown, results["likelihood"])
    for flag in ASKING:
        if flag in results:
            shown.add_row(heading(flag.replace("_", "-")), results[flag]["file"])
            _add_answers(shown, results[flag])
    if "samples" in results:
        add_samples(shown, results["samples"])
    return shown


def _add_answers(shown: Table, found: dict[str, Any]) -> None:
    left = found["left_side"]
    shown.add_row("questions", str(left["count"]))
    for name in ("both_sides", "left_side"):
        if name in found:
            share = spread(found[name], "accuracy", ".1%")
            shown.add_row(f"accuracy by {name.replace('_', ' ')}", share)
    single = found.get("both_sides", {}).get("one_token")
    if single is not None:
        bits = spread(single, "bits_per_answer", ".3f")
        shown.add_row("bits by both sides", f"{bits} ({single['count']} of one token)")
    add_bits(shown, left, where=" by left side")
