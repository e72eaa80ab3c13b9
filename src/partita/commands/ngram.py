"""`partita ngram`: an n-gram model of a text, as a baseline for trained models."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import Progress

from partita.categorical import Decoding
from partita.commands.accuracy import BLANKS
from partita.commands.ngram_table import table
from partita.commands.parsing import add_options, flags_of, make_parser, parse
from partita.commands.terminal import Terminal, passing_bar, print_json
from partita.data.documents import Corpus
from partita.data.scored_rows import token_stream
from partita.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from partita.errors import naming, require, require_int, require_seed
from partita.evaluation.judging import Identified, described, load_identified, load_judge, written
from partita.evaluation.quality import WordList
from partita.evaluation.questions import Questions, last_words, words_inside
from partita.evaluation.tasks import blank_results
from partita.files.atomic import check_file, parents_made, write_whole
from partita.provenance import environment
from partita.studies.ngram import LONGEST, NGram
from partita.studies.ngram_blanks import BEAM, both_sides, left_answers

LENGTH = 256  # tokens of windows and samples, if no model determines it


@dataclass(frozen=True, kw_only=True)
class Options:
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
    seed: int = 0
    """Seed of the samples, and of the words that are hidden."""
    device: str = "auto"
    """Where the judge runs: cpu, cuda, or auto. Counting always uses the CPU."""
    out: str | None = None
    """A JSON file to write the results to."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        require_int(self.order, "--order", 1, LONGEST)
        for name, least in (("limit", 1), ("length", 3), ("count", 2)):
            if getattr(self, name) is not None:
                require_int(getattr(self, name), f"--{name}", least)
        require_int(self.beam, "--beam")
        require_int(self.samples, "--samples", 0)
        require_seed(self.seed, "--seed")
        with naming(flags_of(Options, "train")):
            _ = self.decoding
        wanted = (self.test, self.infill, self.last_word, self.samples or None)
        remedy = "give --test, --infill, --last_word or --samples"
        some = any(value is not None for value in wanted)
        require(some, "train", "there is nothing to do with the counts", remedy)
        needed = self.judge is None or self.samples > 0
        require(needed, "--judge", "there are no samples to look at", "give --samples")
        if self.out is not None:
            check_file(Path(self.out), "--out")

    @property
    def decoding(self) -> Decoding:
        """How the tokens of samples are drawn."""
        return Decoding(self.temperature, self.top_k, self.top_p)


class Setting(NamedTuple):
    """The tokenizer, and how text files are read."""

    tokenizer: Tokenizer
    length: int
    field: str
    documents: str


def options(words: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = make_parser(
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
    )
    add_options(parser, Options, train="a text to count: any that `partita train` reads")
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Count the n-grams, measure, print the results."""
    chosen = options(words)
    with naming(flags_of(Options, "train")):
        setting = _setting(chosen)
        examiner = None if chosen.judge is None else load_judge(chosen.judge, chosen.device)
    corpus = _corpus(chosen.train, setting, "train")
    files = {
        flag: _corpus(path, setting, f"--{flag}")
        for flag in ("test", "infill", "last_word")
        if (path := getattr(chosen, flag)) is not None
    }
    questions_of = {
        flag: _questions(flag, files[flag], setting, chosen)
        for flag in ("infill", "last_word")
        if flag in files
    }
    device = torch.device("cpu") if examiner is None else examiner[0].device
    console = Terminal(stderr=chosen.json)
    with passing_bar(console) as bar:
        model, facts = _counted(corpus, setting, chosen, bar)
        results: dict[str, Any] = {
            "model": facts,
            "environment": environment(device),
            "seed": chosen.seed,
        }
        if "test" in files:
            results["likelihood"] = _likelihood(model, files["test"], setting, chosen)
        for flag, questions in questions_of.items():
            results[flag] = _answers(model, flag, questions, chosen, bar)
        if chosen.samples:
            results["samples"] = _samples(model, corpus, setting, examiner, chosen, bar)
    # Printed first, so that a full disk does not lose the results.
    print_json(results) if chosen.json else console.print(table(results))
    if chosen.out is not None:
        with parents_made(Path(chosen.out)):
            write_whole(Path(chosen.out), json.dumps(results, indent=1))


def _setting(chosen: Options) -> Setting:
    """The tokenizer by its name, or a model's tokenizer with its length and text settings."""
    length = chosen.length or LENGTH
    if chosen.tokenizer == "bytes":
        return Setting(ByteTokenizer(), length, "text", "paragraph")
    if chosen.tokenizer == "text8":  # has no line breaks
        return Setting(CharacterTokenizer(), length, "text", "file")
    with naming({"model": "--tokenizer"}):
        model, _ = load_identified(chosen.tokenizer, "cpu")
    data = model.recipe.data
    return Setting(model.tokenizer, chosen.length or model.length, data.field, data.documents)


def _corpus(path: str, setting: Setting, name: str) -> Corpus:
    with naming({"path": name}):
        return Corpus(path, setting.field, setting.documents)


def _read(name: str) -> dict[str, str]:
    """Names under which errors in a file are reported: the flag that gives the file."""
    return dict.fromkeys(("path", "field", "text", "file"), name)


def _questions(flag: str, corpus: Corpus, setting: Setting, chosen: Options) -> Questions:
    with naming(_read(f"--{flag}")):
        if flag == "last_word":
            return last_words(corpus, setting.tokenizer, setting.length, chosen.count)
        count = chosen.count or BLANKS
        return words_inside(corpus, setting.tokenizer, setting.length, count, chosen.seed)


def _counted(
    corpus: Corpus, setting: Setting, chosen: Options, bar: Progress
) -> tuple[NGram, dict[str, Any]]:
    """The n-gram model, and the facts of its training text."""
    task = bar.add_task("counting", total=1.0)
    with naming(_read("train") | {"tokens": "train", "order": "--order"}):
        tokens = token_stream(corpus, setting.tokenizer, chosen.limit).tokens
        model = NGram.train(
            tokens,
            setting.tokenizer.vocab_size,
            chosen.order,
            lambda share: bar.update(task, completed=share),
        )
    return model, {
        "train": chosen.train,
        "sha256": [content.hex() for _, content in corpus.identity()],
        "tokenizer": chosen.tokenizer,
        "order": chosen.order,
        "tokens": len(tokens),
        "grams": [len(level.keys) for level in model.levels],
    }


def _likelihood(model: NGram, corpus: Corpus, setting: Setting, chosen: Options) -> dict[str, Any]:
    """The exact likelihood of a text, as one sequence that is not cut into windows."""
    with naming(_read("--test")):
        tokens, characters, size = token_stream(corpus, setting.tokenizer)
    bits = model.stream_nats(tokens) / math.log(2)
    sizes = {"character": characters, "byte": size, "token": len(tokens)}
    each = {f"bits_per_{name}": bits / size for name, size in sizes.items()}
    each["perplexity"] = 2 ** each["bits_per_token"]
    return {
        "file": chosen.test,
        "exact": True,
        "tokens": len(tokens),
        "characters": characters,
        **each,
        **{f"{name}_error": 0.0 for name in each},
    }


def _answers(
    model: NGram, flag: str, questions: Questions, chosen: Options, bar: Progress
) -> dict[str, Any]:
    """Answers from the left side alone, as by an autoregressive model; infill also from both."""
    blanks, inside = questions.blanks, flag == "infill"
    task = bar.add_task(flag.replace("_", " "), total=len(blanks) * (2 if inside else 1))

    def advance(count: int) -> None:
        bar.advance(task, count)

    left = blank_results(left_answers(model, blanks, advance), blanks)
    facts = {"cut": questions.cut, "left_out": questions.left_out}
    results = {"file": getattr(chosen, flag), **facts, "left_side": left}
    if inside:
        results["both_sides"] = both_sides(model, blanks, beam=chosen.beam, progress=advance)
    return results


def _samples(
    model: NGram,
    corpus: Corpus,
    setting: Setting,
    examiner: Identified | None,
    chosen: Options,
    bar: Progress,
) -> dict[str, Any]:
    """Write texts, and measure them as `partita eval` does."""
    task = bar.add_task("samples", total=chosen.samples)

    def write(count: int, first: int) -> list[str]:
        place = {"seed": chosen.seed, "first": first}
        tokens = model.sample(count, setting.length, **place, decoding=chosen.decoding)
        return [setting.tokenizer.decode(row) for row in tokens.tolist()]

    texts = written(chosen.samples, write, lambda count: bar.advance(task, count))
    words = WordList.of_corpus(corpus)
    found = described(texts, setting.tokenizer, words, examiner, cut_ends=True)
    return vars(chosen.decoding) | found
