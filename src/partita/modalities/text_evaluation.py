"""`partita eval` of a model of text: its bound on a file, and quality of its samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from partita.evaluation.quality import described, known_words, load_judge, written
from partita.files.names import PREFIX
from partita.likelihood.bounds import nelbo
from partita.likelihood.orders import order_likelihood, require_ordered
from partita.likelihood.profile import draw_profiles, profile, require_profiled
from partita.modalities.base import Evaluation, Work, heading, spread
from partita.modalities.text import TextEvaluation
from partita.models.text_model import TextModel
from partita.samplers import Step

_NO_WORDS = "the training text is not here; name one with --words"


def prepared(model: TextModel, asked: Evaluation, own: TextEvaluation) -> Work:
    """Check everything that the evaluation needs, and return the work."""
    return _Study(model, asked, own).run


class _Text(NamedTuple):
    """A file as a model reads it, on the model's device."""

    tokens: Int64[Tensor, "N L"]
    real: Bool[Tensor, "N L"]
    characters: int
    bytes: int
    label: Int64[Tensor, "N"] | None


class _Study:
    """The evaluation of a model; what it needs is checked when it is made."""

    def __init__(self, model: TextModel, asked: Evaluation, own: TextEvaluation) -> None:
        self.model, self.asked, self.own = model, asked, own
        self.examiner = None if own.judge is None else load_judge(own.judge, asked.device)
        data = model.recipe.data
        self.corpus: Corpus | None = None  # read as the model's own was
        if asked.file is not None:
            with naming({"path": "file"}):
                self.corpus = Corpus(asked.file, data.field, data.documents, data.label)
        self.words = self._words() if asked.samples else None
        if own.profile is not None:
            with naming({"profile": "--profile"}):
                require_profiled(model.method)
        if own.order is not None:
            with naming({"order": "--order"}):
                require_ordered(model.method)

    def run(self, bar: Progress) -> dict[str, Any]:
        """All results, part by part."""
        results: dict[str, Any] = {}
        text = None if self.corpus is None else self._read(self.corpus)
        # Before the likelihood, which may take long: a sampler may refuse its options.
        samples = self._samples(bar) if self.asked.samples else None
        if text is not None:
            results["likelihood"] = self._likelihood(text, bar)
            if self.own.order is not None:
                results["in_order"] = self._in_order(text, self.own.order, bar)
            if self.own.profile is not None:
                results["profile"] = self._profile(text, Path(self.own.profile), bar)
        return results if samples is None else results | {"samples": samples}

    def _read(self, corpus: Corpus) -> _Text:
        model, data = self.model, self.model.recipe.data
        rows = partial(corpus_rows, apart=data.rows == "padded" or data.document_attention)
        if model.flexible:
            rows = partial(whole_rows, skip=data.longer == "skip")
        with naming({"path": "file", "field": "file", "text": "file", "label": "file"}):
            found = rows(corpus, model.tokenizer, model.length, limit=self.asked.limit)
            labels = None
            if corpus.label is not None:
                labels = torch.tensor([model.label_number(name) for name in found.labels])
        tokens, real = found.tokens.to(model.device), found.real.to(model.device)
        return _Text(tokens, real, found.characters, found.bytes, labels)

    def _how(self, name: str, text: _Text, bar: Progress) -> dict[str, Any]:
        """What all measures of a text take, with a bar for each."""
        task = bar.add_task(name, total=1.0)
        return {
            "label": text.label,
            "seed": self.asked.seed,
            "progress": lambda share: bar.update(task, completed=share),
        }

    def _likelihood(self, text: _Text, bar: Progress) -> dict[str, Any]:
        """The bound of a file (exact for an autoregressive model)."""
        method: Any = self.model.method
        how = self._how("likelihood", text, bar) | {"replicates": self.asked.replicates}
        bound = nelbo(method, text.tokens, is_token=text.real, **how)
        perplexities = {name: getattr(bound, name) for name in ("perplexity", "perplexity_error")}
        return self._costs(bound, text, exact=self.model.exact) | perplexities

    def _in_order(self, text: _Text, order: str, bar: Progress) -> dict[str, Any]:
        """The exact bits of the same text, written one token at a time in an order."""
        how = self._how(order, text, bar)
        cost = order_likelihood(self.model.method, text.tokens, order, is_token=text.real, **how)
        return {"order": order} | self._costs(cost, text, exact=True)

    def _costs(self, found: Estimate, text: _Text, *, exact: bool) -> dict[str, Any]:
        """Bits of a file per character, byte and token."""
        units = {"character": text.characters, "byte": text.bytes, "token": found.tokens}
        return {
            "file": self.asked.file,
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

    def _profile(self, text: _Text, path: Path, bar: Progress) -> list[dict[str, float]]:
        """Where the bound comes from, as numbers and as a picture."""
        how = self._how("profile", text, bar) | {"replicates": self.asked.replicates}
        levels = profile(self.model.method, text.tokens, text.real, **how)
        draw_profiles({self.model.recipe.method.name: levels}, path)
        return [
            {
                "hidden_from": level.hidden_from,
                "hidden_to": level.hidden_to,
                "bits_per_token": level.cost.bits,
                "bits_per_token_error": level.cost.bits_error,
            }
            for level in levels
        ]

    def _samples(self, bar: Progress) -> dict[str, Any]:
        """Sample texts by the model's sampling settings, and measure them."""
        model, asked = self.model, self.asked
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
        return described(texts, model.tokenizer, self.words, self.examiner, cut_ends=cut)

    def _words(self) -> frozenset[str] | None:
        """The words of a text: the one named, or that of the training if it is still there."""
        data, named = self.model.recipe.data, self.own.words
        if named is None:
            if data.path and not data.path.startswith(PREFIX):
                with suppress(InputError):
                    return known_words(_training_text(self.model))
            return None
        with naming({"path": "--words", "field": "--words"}):
            words = known_words(Corpus(named, data.field, "paragraph"))
        require(len(words) > 0, "--words", f"{named} holds no words", "name another text")
        return words


def _training_text(model: TextModel) -> Corpus:
    """The text that the model was trained on, if the file that has its name still is that text."""
    corpus, options = model.recipe.data.corpus(), model.recipe.tokenizer
    preparation, known = options.preparation(model.recipe.data), model.provenance.get("tokens")
    # A model that was trained further has the tokenizer of the one before.
    same = any(known == cache_key(corpus, preparation, t) for t in (None, model.tokenizer))
    require(same, "--words", "the training text is not here")
    return corpus


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
            shown.add_row(key.replace("_", " "), spread(likelihood, key))


def _add_order(shown: Table, cost: dict[str, Any]) -> None:
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
            shown.add_row(f"judge's {key.replace('_', ' ')}", spread(verdict, key))
