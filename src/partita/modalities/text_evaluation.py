"""`partita eval` of a model of text: its bound on a file, and quality of its samples."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int64
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from partita.contracts.estimate import Estimate
from partita.data.documents import Corpus
from partita.data.prepare import cache_key
from partita.data.scored_rows import corpus_rows, whole_rows
from partita.errors import InputError, naming, require
from partita.evaluation.judging import Identified, described, load_judge, written
from partita.evaluation.quality import known_words
from partita.files.names import PREFIX
from partita.likelihood.bounds import nelbo
from partita.likelihood.orders import order_likelihood, require_ordered
from partita.likelihood.profile import draw_profiles, profile, require_profiled
from partita.modalities.base import Evaluation, Work, heading
from partita.modalities.text import TextEvaluation
from partita.models.text_model import TextModel
from partita.samplers import Step

_NO_WORDS = "the training text is not here; name one with --words"


def prepared(model: TextModel, asked: Evaluation, own: TextEvaluation) -> Work:
    """Check everything that the evaluation needs, and return the work."""
    examiner = None if own.judge is None else load_judge(own.judge, asked.device)
    corpus, known = _corpus(model, asked), _words(model, asked, own)
    if own.profile is not None:
        with naming({"profile": "--profile"}):
            require_profiled(model.method)
    if own.order is not None:
        with naming({"order": "--order"}):
            require_ordered(model.method)

    def work(bar: Progress) -> dict[str, Any]:
        results: dict[str, Any] = {}
        text = None if corpus is None else _read(model, corpus, asked)
        # Before the likelihood, which may take long: a sampler may refuse its options.
        samples = _samples(model, examiner, known, asked, bar) if asked.samples else None
        if text is not None:
            results["likelihood"] = _likelihood(model, text, asked, bar)
            if own.order is not None:
                results["in_order"] = _in_order(model, text, own.order, asked, bar)
            if own.profile is not None:
                results["profile"] = _profile(model, text, asked, Path(own.profile), bar)
        return results if samples is None else results | {"samples": samples}

    return work


def _corpus(model: TextModel, asked: Evaluation) -> Corpus | None:
    """The text to measure the likelihood of, read as the model's own was."""
    data = model.recipe.data
    with naming({"path": "file"}):
        if asked.file is None:
            return None
        return Corpus(asked.file, data.field, data.documents, data.label)


class _Text(NamedTuple):
    """A file as a model reads it, on the model's device."""

    tokens: Int64[Tensor, "N L"]
    real: Bool[Tensor, "N L"]
    characters: int
    bytes: int
    label: Int64[Tensor, "N"] | None


def _read(model: TextModel, corpus: Corpus, asked: Evaluation) -> _Text:
    data = model.recipe.data
    apart = data.rows == "padded" or data.document_attention
    skip = data.longer == "skip"
    rows = partial(whole_rows, skip=skip) if model.flexible else partial(corpus_rows, apart=apart)
    with naming({"path": "file", "field": "file", "text": "file", "label": "file"}):
        found = rows(corpus, model.tokenizer, model.length, limit=asked.limit)
        labels = None
        if corpus.label is not None:
            labels = torch.tensor([model.label_number(name) for name in found.labels])
    tokens, real = found.tokens.to(model.device), found.real.to(model.device)
    return _Text(tokens, real, found.characters, found.bytes, labels)


def _likelihood(model: TextModel, text: _Text, asked: Evaluation, bar: Progress) -> dict[str, Any]:
    """The bound of a file (exact for an autoregressive model)."""
    task = bar.add_task("likelihood", total=1.0)
    bound = nelbo(
        model.method,  # type: ignore[arg-type]
        text.tokens,
        is_token=text.real,
        label=text.label,
        replicates=asked.replicates,
        seed=asked.seed,
        progress=lambda share: bar.update(task, completed=share),
    )
    return _costs(bound, text, asked, exact=model.exact) | {
        "perplexity": bound.perplexity,
        "perplexity_error": bound.perplexity_error,
    }


def _in_order(
    model: TextModel, text: _Text, order: str, asked: Evaluation, bar: Progress
) -> dict[str, Any]:
    """The exact bits of the same text, written one token at a time in an order."""
    task = bar.add_task(order, total=1.0)
    cost = order_likelihood(
        model.method,
        text.tokens,
        order,
        is_token=text.real,
        label=text.label,
        seed=asked.seed,
        progress=lambda share: bar.update(task, completed=share),
    )
    return {"order": order} | _costs(cost, text, asked, exact=True)


def _costs(found: Estimate, text: _Text, asked: Evaluation, *, exact: bool) -> dict[str, Any]:
    """Bits of a file per character, byte and token."""
    units = {"character": text.characters, "byte": text.bytes, "token": found.tokens}
    return {
        "file": asked.file,
        **({} if text.label is None else {"given_the_class": True}),
        "exact": exact,
        "tokens": found.tokens,
        "characters": text.characters,
        "bytes": text.bytes,
    } | {
        f"bits_per_{unit}{of}": value * found.tokens / count
        for unit, count in units.items()
        for of, value in (("", found.bits), ("_error", found.bits_error))
    }


def _profile(
    model: TextModel, text: _Text, asked: Evaluation, path: Path, bar: Progress
) -> list[dict[str, float]]:
    """Where the bound comes from, as numbers and as a picture."""
    task = bar.add_task("profile", total=1.0)
    levels = profile(
        model.method,
        text.tokens,
        text.real,
        replicates=asked.replicates,
        seed=asked.seed,
        label=text.label,
        progress=lambda share: bar.update(task, completed=share),
    )
    draw_profiles({model.recipe.method.name: levels}, path)
    return [
        {
            "hidden_from": level.hidden_from,
            "hidden_to": level.hidden_to,
            "bits_per_token": level.cost.bits,
            "bits_per_token_error": level.cost.bits_error,
        }
        for level in levels
    ]


def _samples(
    model: TextModel,
    examiner: Identified | None,
    words: Container[str] | None,
    asked: Evaluation,
    bar: Progress,
) -> dict[str, Any]:
    """Sample texts by the model's sampling settings, and measure them."""
    task = bar.add_task("samples", total=asked.samples)
    if not (bar.console.is_terminal or asked.quiet):  # where there is no bar
        bar.console.print(f"Writing {asked.samples} texts")

    def write(count: int, first: int) -> list[str]:
        def show(step: Step) -> None:  # the texts of a batch grow together, for half a minute
            share = (step.index + 1) / (step.total or math.inf)
            bar.update(task, completed=first + count * share)

        callback = None if bar.disable else show  # which costs a copy of the texts at each step
        arguments: dict[str, Any] = {"seed": asked.seed, "first": first, "callback": callback}
        texts = model.sample(count, **arguments, **asked.how)
        bar.update(task, completed=first + count)
        return texts

    texts = written(asked.samples, write)
    cut = not model.flexible  # windows of a long text begin and end anywhere
    return described(texts, model.tokenizer, words, examiner, cut_ends=cut)


def _training_text(model: TextModel) -> Corpus:
    """The text that the model was trained on, if the file that has its name still is that text."""
    corpus, options = model.recipe.data.corpus(), model.recipe.tokenizer
    preparation, known = options.preparation(model.recipe.data), model.provenance.get("tokens")
    # A model that was trained further has the tokenizer of the one before.
    same = any(known == cache_key(corpus, preparation, t) for t in (None, model.tokenizer))
    require(same, "--words", "the training text is not here")
    return corpus


def _words(model: TextModel, asked: Evaluation, own: TextEvaluation) -> frozenset[str] | None:
    """The words of a text: the one that is named, or that of the training if it is still there."""
    if asked.samples == 0:
        return None
    data = model.recipe.data
    if own.words is None:
        if data.path and not data.path.startswith(PREFIX):
            with suppress(InputError):
                return known_words(_training_text(model))
        return None
    with naming({"path": "--words", "field": "--words"}):
        words = known_words(Corpus(own.words, data.field, "paragraph"))
    require(len(words) > 0, "--words", f"{own.words} holds no words", "name another text")
    return words


def table(results: Mapping[str, Any]) -> Table:
    """The numbers for people."""
    shown = Table("", "", show_header=False)
    likelihood, samples = results.get("likelihood"), results.get("samples")
    if likelihood:
        add_likelihood(shown, likelihood)
    if "in_order" in results:
        _add_order(shown, results["in_order"])
    if samples:
        add_samples(shown, samples)
    return shown


def add_likelihood(shown: Table, likelihood: dict[str, Any]) -> None:
    """The likelihood of a file."""
    what = "exact" if likelihood["exact"] else "at most"
    shown.add_row(heading("likelihood"), f"{likelihood['file']} ({what})")
    for key in ("bits_per_character", "bits_per_byte", "bits_per_token", "perplexity"):
        if key in likelihood:
            spread = f"{likelihood[key]:.4f} ± {likelihood[f'{key}_error']:.4f}"
            shown.add_row(key.replace("_", " "), spread)


def _add_order(shown: Table, cost: dict[str, Any]) -> None:
    """The exact bits in an order."""
    drawn = " for the orders of this seed" if cost["order"] == "random" else ""
    shown.add_row(heading(cost["order"]), f"one token at a time (exact{drawn})")
    for key in ("bits_per_character", "bits_per_byte", "bits_per_token"):
        shown.add_row(key.replace("_", " "), f"{cost[key]:.4f}")


def add_samples(shown: Table, samples: dict[str, Any]) -> None:
    """The quality of samples."""
    shown.add_row(heading("samples"), f"{samples['count']} texts")
    for key in ("unigram_entropy_bits", "distinct_1", "distinct_2", "distinct_3"):
        shown.add_row(key.replace("_", " "), f"{samples[key]:.4f}")
    known = f"{samples['known_words']:.1%}" if "known_words" in samples else _NO_WORDS
    shown.add_row("known words", known)
    if "judge" in samples:
        verdict = samples["judge"]
        shown.add_row(heading("judge"), f"{verdict['path']} ({verdict['sha256'][:12]})")
        for key in ("perplexity", "bits_per_character"):
            spread = f"{verdict[key]:.4f} ± {verdict[f'{key}_error']:.4f}"
            shown.add_row(f"judge's {key.replace('_', ' ')}", spread)
