"""`partita eval`: likelihood of a file, and quality of what a model writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from partita.commands.parsing import MODEL, add_options, make_parser, parse
from partita.data.documents import Corpus
from partita.data.hugging_face import PREFIX
from partita.data.prepare import cache_key
from partita.errors import InputError, naming, require, require_int, require_seed
from partita.evaluation.likelihood import nelbo
from partita.evaluation.quality import (
    WordList,
    distinct,
    judge,
    share_of_known_words,
    unigram_entropy,
)
from partita.evaluation.texts import corpus_rows, whole_rows
from partita.files import check_file, parents_made, write_whole
from partita.hub import format
from partita.hub.find import find
from partita.hub.text_model import TextModel, load
from partita.methods import AR
from partita.provenance import environment

_NO_WORDS = "the training text is not here; name one with --words"
BATCH = 32  # samples drawn at a time


@dataclass(frozen=True, kw_only=True)
class Options:
    """Evaluation."""

    model: str
    file: str | None
    limit: int | None = None
    """Score so many tokens of the file; of whole texts (flexmdm), up to the end of one."""
    replicates: int = 4
    """Draws of the likelihood's estimate."""
    samples: int = 64
    """Texts to draw; 0 for none."""
    judge: str | None = None
    """An autoregressive model that judges the samples."""
    words: str | None = None
    """A text whose words count as words; the training text unless given."""
    seed: int = 0
    """Seed of every draw."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: str | None = None
    """A JSON file to write the results to."""
    json: bool = False
    """Print JSON, for machines."""

    def __post_init__(self) -> None:
        require_int(self.replicates, "--replicates", 2)
        require_int(self.samples, "--samples", 0)
        require_seed(self.seed, "--seed")
        if self.limit is not None:
            require_int(self.limit, "--limit")
        require(
            self.file is not None or self.samples > 0,
            "file",
            "there is nothing to evaluate",
            "give a file, or --samples",
        )
        for flag, given in (("--judge", self.judge), ("--words", self.words)):
            needed = given is None or self.samples > 0
            require(needed, flag, "there are no samples to look at", "give --samples")
        if self.out is not None:
            check_file(Path(self.out), "--out")


def options(words: Sequence[str]) -> Options:
    """What the words ask for."""
    parser = make_parser(
        "eval",
        "Evaluate a model. On a text (any that `partita train` reads): bits per character and\n"
        "perplexity per token, with the standard error of the estimate. On texts that the model\n"
        "writes: perplexity under a judge (an autoregressive model of yours), entropy, distinct\n"
        "n-grams, and the share of words that the training text has.",
        [
            "partita eval runs/notes-mdlm test.txt",
            "partita eval runs/notes-mdlm test.txt --judge runs/judge --samples 256",
            "partita eval runs/notes-mdlm --samples 64 --words notes.txt --out results.json",
        ],
    )
    add_options(parser, Options, model=MODEL, file="?a text to measure the likelihood of")
    return parse(parser, words, Options)


def run(words: Sequence[str]) -> None:
    """Load, measure, print."""
    chosen = options(words)
    with naming({"device": "--device"}):
        model, identity = load_identified(chosen.model, chosen.device)
    examiner = None if chosen.judge is None else load_judge(chosen.judge, chosen.device)
    corpus = _corpus(model, chosen)
    known = _words(model, chosen)
    console = Console(highlight=False, stderr=chosen.json)
    results: dict[str, Any] = {
        "model": identity,
        "environment": environment(model.device),
        "seed": chosen.seed,
    }
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        if corpus is not None:
            results["likelihood"] = _likelihood(model, corpus, chosen, bar)
        if chosen.samples:
            results["samples"] = _samples(model, examiner, known, chosen, bar)
    # Printed first: a disk that is full must not cost the results.
    if chosen.json:
        print(json.dumps(results))
    else:
        console.print(_table(results))
    if chosen.out is not None:
        path = Path(chosen.out)
        with parents_made(path):
            write_whole(path, json.dumps(results, indent=1))


def load_identified(name: str, device: str) -> tuple[TextModel, dict[str, str]]:
    """A model, and which one it is."""
    folder = find(name)
    checksum = format.verify(folder)[format.WEIGHTS]
    return load(folder, device=device), {"path": str(folder), "sha256": checksum}


def load_judge(name: str, device: str) -> tuple[TextModel, dict[str, str]]:
    """An autoregressive model, and which one it is."""
    with naming({"model": "--judge"}):
        model, identity = load_identified(name, device)
    require(
        isinstance(model.method, AR),
        "--judge",
        f"{name} is no autoregressive model",
        "train one with --method.name ar",
    )
    return model, identity


def _corpus(model: TextModel, chosen: Options) -> Corpus | None:
    """The text to measure the likelihood of, read as the model's own was."""
    data = model.recipe.data
    with naming({"path": "file"}):
        if chosen.file is None:
            return None
        return Corpus(chosen.file, data.field, data.documents, data.label)


def _likelihood(model: TextModel, corpus: Corpus, chosen: Options, bar: Progress) -> dict[str, Any]:
    """The bound of a file (exact for an autoregressive model)."""
    data = model.recipe.data
    apart = data.rows == "padded" or data.document_attention
    skip = data.longer == "skip"
    rows = partial(whole_rows, skip=skip) if model.flexible else partial(corpus_rows, apart=apart)
    with naming({"path": "file", "field": "file", "text": "file", "label": "file"}):
        tokens, real, characters, named = rows(
            corpus, model.tokenizer, model.length, limit=chosen.limit
        )
        labels = None
        if corpus.label is not None:
            labels = torch.tensor([model.label_number(name) for name in named])
    task = bar.add_task("likelihood", total=1.0)
    bound = nelbo(
        model.method,  # type: ignore[arg-type]
        tokens.to(model.device),
        valid=real.to(model.device),
        label=labels,
        replicates=chosen.replicates,
        seed=chosen.seed,
        progress=lambda share: bar.update(task, completed=share),
    )
    per_character = bound.tokens / characters
    return {
        "file": chosen.file,
        **({} if labels is None else {"given_the_class": True}),
        "exact": isinstance(model.method, AR),
        "tokens": bound.tokens,
        "characters": characters,
        "bits_per_character": bound.bits * per_character,
        "bits_per_character_error": bound.bits_error * per_character,
        "bits_per_token": bound.bits,
        "bits_per_token_error": bound.bits_error,
        "perplexity": bound.perplexity,
        "perplexity_error": bound.perplexity_error,
    }


def _samples(
    model: TextModel,
    examiner: tuple[TextModel, dict[str, str]] | None,
    words: WordList | None,
    chosen: Options,
    bar: Progress,
) -> dict[str, Any]:
    """Texts of the model's own sampling section, and what can be said of them."""
    task = bar.add_task("samples", total=chosen.samples)
    texts: list[str] = []
    for first in range(0, chosen.samples, BATCH):
        count = min(BATCH, chosen.samples - first)
        texts += model.sample(count, seed=chosen.seed, first=first)
        bar.update(task, completed=len(texts))
    ids = [model.tokenizer.encode(text) for text in texts]
    results: dict[str, Any] = {
        "count": len(texts),
        "unigram_entropy_bits": unigram_entropy(ids),
        **{f"distinct_{n}": distinct(ids, n) for n in (1, 2, 3)},
    }
    if words is not None:
        cut = not model.flexible  # windows of a long text begin and end anywhere
        results["known_words"] = share_of_known_words(texts, words, cut_ends=cut)
    if examiner is not None:
        results["judge"] = judged(*examiner, texts)
    return results


def _training_text(model: TextModel) -> Corpus:
    """The text that the model was trained on, if the file that has its name still is that text."""
    corpus, options = model.recipe.data.corpus(), model.recipe.tokenizer
    key = cache_key(corpus, options.preparation(model.recipe.data))
    require(key == model.provenance.get("tokens"), "--words", "the training text is not here")
    return corpus


def _words(model: TextModel, chosen: Options) -> WordList | None:
    """The words of a text: the one that is named, or that of the training if it is still there."""
    if chosen.samples == 0:
        return None
    data = model.recipe.data
    if chosen.words is None:
        if data.path and not data.path.startswith(PREFIX):
            with suppress(InputError):
                return WordList.of_corpus(_training_text(model))
        return None
    with naming({"path": "--words", "field": "--words"}):
        words = WordList.of_corpus(Corpus(chosen.words, data.field, "paragraph"))
    require(len(words) > 0, "--words", f"{chosen.words} holds no words", "name another text")
    return words


def judged(model: TextModel, identity: dict[str, str], texts: list[str]) -> dict[str, Any]:
    """What an autoregressive model says of some texts."""
    with torch.no_grad(), naming({"text": "--judge", "texts": "--judge"}):
        verdict = judge(model.method, model.tokenizer, texts)  # type: ignore[arg-type]
    return identity | {
        "perplexity": verdict.perplexity,
        "perplexity_error": verdict.perplexity_error,
        "bits_per_character": verdict.bits_per_character,
        "bits_per_character_error": verdict.bits_per_character_error,
        "tokens": verdict.tokens,
    }


def _table(results: dict[str, Any]) -> Table:
    """The numbers for people."""
    table = Table("", "", show_header=False)
    likelihood, samples = results.get("likelihood"), results.get("samples")
    if likelihood:
        what = "exact" if likelihood["exact"] else "at most"
        table.add_row("[bold]likelihood[/]", f"{likelihood['file']} ({what})")
        for key in ("bits_per_character", "bits_per_token", "perplexity"):
            name = f"{key.replace('_', ' ')}"
            table.add_row(name, f"{likelihood[key]:.4f} ± {likelihood[f'{key}_error']:.4f}")
    if samples:
        table.add_row("[bold]samples[/]", f"{samples['count']} texts")
        for key in ("unigram_entropy_bits", "distinct_1", "distinct_2", "distinct_3"):
            table.add_row(key.replace("_", " "), f"{samples[key]:.4f}")
        known = f"{samples['known_words']:.1%}" if "known_words" in samples else _NO_WORDS
        table.add_row("known words", known)
        if "judge" in samples:
            verdict = samples["judge"]
            table.add_row("[bold]judge[/]", f"{verdict['path']} ({verdict['sha256'][:12]})")
            for key in ("perplexity", "bits_per_character"):
                spread = f"{verdict[key]:.4f} ± {verdict[f'{key}_error']:.4f}"
                table.add_row(f"judge's {key.replace('_', ' ')}", spread)
    return table
