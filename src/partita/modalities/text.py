"""Text: what the command line does with models of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from partita.data.text_data import TEXT
from partita.errors import require, require_ints, require_known
from partita.files.atomic import check_file
from partita.modalities.base import (
    Drawn,
    Evaluation,
    Infilling,
    Modality,
    OwnOptions,
    Sampling,
    Work,
)
from partita.models.text_model import TextModel
from partita.plotting import require_plots
from partita.samplers.planned import ORDERS


@dataclass(frozen=True, kw_only=True)
class TextSampling(OwnOptions):
    """Options of `sample` for text."""

    length: int | None = None
    """Tokens of a text; the model's length unless given (more with --sampler blocks). The most
    that a text may have, if the model decides on its length (flexmdm)."""
    prompt: str = ""
    """A text to go on from."""

    def __post_init__(self) -> None:
        require_ints(self, "--", length=1)


@dataclass(frozen=True, kw_only=True)
class TextInfilling(OwnOptions):
    """Options of `infill` for text."""

    blank_tokens: int | None = None
    """Tokens of every blank that does not say its own number."""
    flexible: bool = False
    """Let the model decide how many tokens such a blank takes, also none (flexmdm)."""
    length: int | None = None
    """With --flexible: the most tokens that a text may have; the model's length unless given."""

    def __post_init__(self) -> None:
        require_ints(self, "--", length=1)
        if self.length is not None:
            problem = "blanks of given sizes leave nothing to say about the length"
            require(self.flexible, "--length", problem, "leave it out, or give --flexible")

    def check(self, asked: Infilling) -> None:
        if not asked.named:  # it may be a model whose text was forgotten
            remedy = "write one as ____; a model comes before the text"
            require("__" in asked.given, "text", "has no blank", remedy)


@dataclass(frozen=True, kw_only=True)
class TextEvaluation(OwnOptions):
    """Options of `eval` for text."""

    profile: str | None = None
    """Text, and masked models: a PNG file that shows where the bound comes from, by the share of
    hidden tokens. It takes sixteen times as long as the bound."""
    order: str | None = None
    """Text, and masked models: left-to-right or random. Beside the bound, what the text costs
    exactly if it is written one token at a time in that order. The network runs for every token:
    on two cores, 2,000 tokens of the model in the package take half a minute."""
    judge: str | None = None
    """An autoregressive model that judges the samples."""
    words: str | None = None
    """A text whose words count as words; the training text unless given."""

    def check(self, asked: Evaluation) -> None:
        for flag, given in (("--judge", self.judge), ("--words", self.words)):
            needed = given is None or asked.samples > 0
            require(needed, flag, "there are no samples to look at", "give --samples")
        for flag, given in (("--profile", self.profile), ("--order", self.order)):
            shown = given is None or asked.file is not None
            require(shown, flag, "there is no likelihood without a file", "give a file")
        if self.order is not None:
            require_known(self.order, "--order", ORDERS)
        check_file(self.profile, "--profile", ".png")
        if self.profile is not None:
            require_plots("--profile")


class TextModality(Modality[TextModel]):
    """Text: sampling, infilling and evaluation."""

    data, model = TEXT, TextModel
    watchable, try_flags = True, "--show"
    sample_options, infill_options = TextSampling, TextInfilling
    eval_options = TextEvaluation

    def sample(self, model: TextModel, asked: Sampling, own: TextSampling) -> Drawn:
        texts = model.sample(
            asked.count,
            prompt=own.prompt,
            length=own.length,
            label=asked.label,
            callback=asked.callback,
            **asked.how,
        )
        return Drawn({"texts": texts}, texts)

    def infill(self, model: TextModel, asked: Infilling, own: TextInfilling) -> Drawn:
        texts = model.infill(
            asked.given,
            asked.count,
            blank_tokens=own.blank_tokens,
            flexible=own.flexible,
            label=asked.label,
            callback=asked.callback,
            **({} if own.length is None else {"length": own.length}),
            **asked.how,
        )
        return Drawn({"texts": texts}, texts)

    def evaluation(self, model: TextModel, asked: Evaluation, own: TextEvaluation) -> Work:
        from partita.modalities.text_evaluation import prepared  # loaded on use

        return prepared(model, asked, own)

    def table(self, results: Mapping[str, Any]) -> Table:
        from partita.modalities.text_evaluation import table

        return table(results)
