"""A trained model with its tokenizer: text in, text out. Saved and loaded in one format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partita.contracts.estimate import Estimate
from partita.data.blanks import infill_prompt, opening_prompt
from partita.data.scored_rows import windows
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, require
from partita.likelihood.bounds import nelbo, replicate_nats, standard_error
from partita.methods.contracts import TextMethod
from partita.models.score import Score
from partita.models.trained import MODELS, TrainedModel, of_kind
from partita.moved import name_of_before

_VISITS = 16  # times that a replicate draws for a text that is scored as a whole


@MODELS.register("text")
class TextModel(TrainedModel):
    """A method, its tokenizer and the recipe that made it."""

    tokenizer: Tokenizer
    data = "text"

    def sample(
        self,
        count: int = 1,
        *,
        prompt: str = "",
        length: int | None = None,
        label: str | int | None = None,
        **options: Any,
    ) -> list[str]:
        """Texts that the model writes, after a prompt if one is given.

        `options` go to `partita.sample`; the recipe's `sampling` section fills in the rest.
        `precision` may be "float32" or "bfloat16" (see `drawn`). A model of flexible length decides
        where its texts end; `length` is then an upper limit. A `label` is the name or
        the number of a class that the model has learned.
        """
        place: dict[str, Any] = {"label": self.label_number(label)}
        length = self.length if length is None else length
        if prompt:
            opening = opening_prompt(self.tokenizer, prompt, length, flexible=self.flexible)
            place["prompt"] = opening.to(self.device)
        if not prompt or self.flexible:
            place["length"] = length
        return self.decode(self.drawn(count, **place, **self.drawing(options)))

    def infill(  # type: ignore[override] # pictures are refused, as they are no text
        self,
        text: str,
        count: int = 1,
        *,
        blank_tokens: int | None = None,
        flexible: bool = False,
        label: str | int | None = None,
        **options: Any,
    ) -> list[str]:
        """The text with its blanks filled in, `count` times.

        A run of underscores is a blank of that many tokens, `__12__` one of twelve, and
        `blank_tokens` sets the size of all plain runs. With `flexible` the model decides how many
        tokens come in plain runs (also none), if it is one that can.
        """
        kind = type(text).__name__
        require(isinstance(text, str), "text", f"must be a text, got {kind}", "give one at a time")
        problem = f"{self.recipe.method.name} cannot tell how many tokens a blank takes"
        remedy = "leave it out, or train a model that can with --method.name flexmdm"
        require(self.flexible or not flexible, "flexible", problem, remedy)
        prompt = infill_prompt(self.tokenizer, text, blank_tokens, flexible=flexible)
        chosen = self.drawing(options) | {"label": self.label_number(label)}
        return self.decode(self.drawn(count, prompt=prompt.to(self.device), **chosen))

    def _scores(self, texts: list[Any], *how: Any) -> list[Score]:
        scores = []
        for place, text in enumerate(texts, 1):
            with _numbered(place, len(texts)):
                scores.append(self._score(text, *how))
        return scores

    def _score(self, text: Any, label: str | int | None, replicates: int, seed: int) -> Score:  # noqa: ANN401 - checked here
        problem = f"must be a text or a list of texts, got {type(text).__name__}"
        require(isinstance(text, str), "text", problem)
        ids, number = self.tokenizer.encode(text), self.label_number(label)
        if self.flexible:
            return self._score_whole(text, ids, number, replicates, seed)
        require(len(ids) > 0, "text", "is empty")
        tokens, real = (part.to(self.device) for part in windows(ids, self.length))
        how = {"label": number, "replicates": replicates, "seed": seed}
        bound = nelbo(self.method, tokens, is_token=real, **how)  # type: ignore[arg-type]
        return Score(bound.bits * bound.tokens, bound.bits_error * bound.tokens, bound, len(text))

    def _score_whole(
        self, text: str, ids: list[int], label: int | None, replicates: int, seed: int
    ) -> Score:
        """Score a text with its end; an empty one has a probability too.

        Each replicate draws many evenly spread times: a single one rarely hits those that count
        most.
        """
        problem = f"has {len(ids)} tokens, more than the model's {self.length}"
        remedy = "shorten it: part of a text is another text, with an end that is not there"
        require(len(ids) <= self.length, "text", problem, remedy)
        tokens = torch.tensor([ids or [0]], device=self.device).expand(_VISITS, -1)
        real = torch.full_like(tokens, len(ids) > 0, dtype=torch.bool)
        arguments = {"seed": seed, "label": label}
        nats = replicate_nats(self.method, tokens, real, replicates, **arguments) / _VISITS  # type: ignore[arg-type]
        total, error = float(nats.mean()), standard_error(nats)
        per = len(ids) or math.nan
        bound = Estimate(total / per, error / per, len(ids))
        return Score(total / math.log(2), error / math.log(2), bound, len(text))

    def decode(self, tokens: Tensor) -> list[str]:
        """Rows of tokens as texts."""
        return [self.tokenizer.decode(row) for row in tokens.tolist()]

    @property
    def exact(self) -> bool:
        """Whether the model's bits are exact and not an upper bound."""
        return isinstance(self.method, TextMethod) and self.method.exact

    @property
    def flexible(self) -> bool:
        """Whether the model decides how long texts are."""
        return isinstance(self.method, TextMethod) and self.method.whole_texts


@contextmanager
def _numbered(place: int, count: int) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        which = f"text {place}: " if count > 1 else ""
        raise InputError(error.argument, f"{which}{error.problem}", error.remedy) from error


def as_text(model: TrainedModel, name: str | Path) -> TextModel:
    """A model of text; one of images is refused."""
    return of_kind(TextModel, model, name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        return name_of_before(__name__, name)
