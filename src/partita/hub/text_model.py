"""A trained model with its tokenizer: text in, text out. Saved and loaded in one format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from partita.data.blanks import infill_prompt, opening_prompt
from partita.data.tokenizers import Tokenizer
from partita.errors import InputError, require
from partita.evaluation.likelihood import Estimate, nelbo, replicate_nats, standard_error
from partita.evaluation.texts import windows
from partita.hub import format
from partita.hub.card import model_card
from partita.hub.find import find
from partita.hub.parts import config, read
from partita.methods.base import is_flexible
from partita.recipe import Recipe
from partita.samplers import sample
from partita.training.distribution import choose_device

_SHOWN = 12  # classes that a message names
_VISITS = 16  # of each replicate, to a text that is scored as a whole


@dataclass(frozen=True)
class Score:
    """The bound of a text: of all of it, per token, and per character.

    An empty text has bits under a model that decides where texts end, but none per token or per
    character: those are not a number.
    """

    bits: float
    bits_error: float
    bound: Estimate
    characters: int

    @property
    def bits_per_character(self) -> float:
        return self.bits / self.characters if self.characters else math.nan

    @property
    def bits_per_character_error(self) -> float:
        return self.bits_error / self.characters if self.characters else math.nan


class TextModel(ModelHubMixin, library_name="partita", tags=["masked-diffusion"]):
    """A method, its tokenizer and the recipe that made it.

    `save_pretrained`, `from_pretrained` and `push_to_hub` work as they do for every model on the
    Hugging Face hub; `partita.load` and `save` are the short names.
    """

    def __init__(
        self,
        method: nn.Module,
        tokenizer: Tokenizer,
        recipe: Recipe,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self.method, self.tokenizer, self.recipe = method.eval(), tokenizer, recipe
        self.provenance = provenance or {}

    # Text in, text out ---------------------------------------------------------------------------

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

        `options` go to `partita.sample`; the recipe's `sampling` section fills in the rest. A model
        of flexible length decides where its texts end; `length` is then the most that one may have.
        A `label` is the name or the number of a class that the model has learned.
        """
        place: dict[str, Any] = {"label": self.label_number(label)}
        length = self.length if length is None else length
        if prompt:
            opening = opening_prompt(self.tokenizer, prompt, length, flexible=self.flexible)
            place["prompt"] = opening.to(self.device)
        if not prompt or self.flexible:
            place["length"] = length
        chosen = self._drawing(options)
        return self.decode(sample(self.method, count, **place, **chosen))  # type: ignore[arg-type]

    def infill(
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
        problem = f"{self.recipe.method.name} cannot tell how many tokens a blank takes"
        remedy = "leave it out, or train a model that can with --method.name flexmdm"
        require(self.flexible or not flexible, "flexible", problem, remedy)
        prompt = infill_prompt(self.tokenizer, text, blank_tokens, flexible=flexible)
        chosen = self._drawing(options) | {"label": self.label_number(label)}
        return self.decode(sample(self.method, count, prompt=prompt.to(self.device), **chosen))  # type: ignore[arg-type]

    def score(
        self, text: str, *, label: str | int | None = None, replicates: int = 8, seed: int = 0
    ) -> Score:
        """How many bits the model needs for a text, at most: its bound, with standard error.

        A text longer than the model is scored in consecutive windows; but a model of flexible
        length, for which each window would be a text with an end, takes none that is longer.
        """
        ids, number = self.tokenizer.encode(text), self.label_number(label)
        if self.flexible:
            return self._score_whole(text, ids, number, replicates, seed)
        require(len(ids) > 0, "text", "is empty")
        tokens, real = windows(ids, self.length)
        bound = nelbo(
            self.method,  # type: ignore[arg-type]
            tokens.to(self.device),
            valid=real.to(self.device),
            label=number,
            replicates=replicates,
            seed=seed,
        )
        return Score(bound.bits * bound.tokens, bound.bits_error * bound.tokens, bound, len(text))

    def _score_whole(
        self, text: str, ids: list[int], label: int | None, replicates: int, seed: int
    ) -> Score:
        """A text with its end; an empty one has a probability too.

        Each replicate visits the text many times, at times that are evenly spread: one visit alone
        rarely sees the moments that count most.
        """
        problem = f"has {len(ids)} tokens, more than the model's {self.length}"
        remedy = "shorten it: part of a text is another text, with an end that is not there"
        require(len(ids) <= self.length, "text", problem, remedy)
        tokens = torch.tensor([ids or [0]], device=self.device).expand(_VISITS, -1)
        real = torch.full_like(tokens, len(ids) > 0, dtype=torch.bool)
        told = {"seed": seed, "label": label}
        nats = replicate_nats(self.method, tokens, real, replicates, **told) / _VISITS  # type: ignore[arg-type]
        total, error = float(nats.mean()), standard_error(nats)
        per = len(ids) or math.nan
        bound = Estimate(total / per, error / per, len(ids))
        return Score(total / math.log(2), error / math.log(2), bound, len(text))

    def _drawing(self, options: dict[str, Any]) -> dict[str, Any]:
        """The recipe's `sampling` section under what is asked for; another sampler has its own."""
        usual = self.recipe.sampling.arguments()
        if options.get("sampler") not in (None, usual["sampler"]):
            usual = {}
        return usual | options

    def decode(self, tokens: Tensor) -> list[str]:
        """Rows of tokens as texts."""
        return [self.tokenizer.decode(row) for row in tokens.tolist()]

    @property
    def classes(self) -> list[str]:
        """The names of the classes that the model has learned; numbers, if nobody named them."""
        count, named = self.recipe.network.classes, self.provenance.get("classes")
        fits = isinstance(named, list) and len(named) == count
        return [str(name) for name in named] if fits else [str(n) for n in range(count)]  # type: ignore[union-attr]

    def label_number(self, label: str | int | None) -> int | None:
        """A class by its name or number as the number that the network knows."""
        if label is None:
            return None
        known = self.classes
        require(bool(known), "label", "the model knows no classes", "leave it out")
        shown = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        if isinstance(label, int):
            problem = f"there is no class number {label}"
            require(0 <= label < len(known), "label", problem, f"known: {shown}")
            return label
        require(label in known, "label", f"unknown class {label!r}", f"known: {shown}")
        return known.index(label)

    @property
    def flexible(self) -> bool:
        """Whether the model decides how long texts are."""
        return is_flexible(self.method)

    @property
    def length(self) -> int:
        """The longest sequence, in tokens."""
        return int(self.method.length)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    # Files ---------------------------------------------------------------------------------------

    def contents(self) -> dict[str, Any]:
        """The files of a saved model."""
        weights = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.method.state_dict().items()
        }
        return {
            format.CONFIG: config(self.recipe, self.tokenizer, self.provenance),
            format.TOKENIZER: self.tokenizer.describe(),
            format.WEIGHTS: weights,
        }

    def card(self) -> str:
        """The model card."""
        parameters = sum(p.numel() for p in self.method.parameters())
        tokens, family = self.tokenizer.vocab_size, str(self.method.family)
        return model_card(self.recipe, tokens, parameters, self.provenance, family=family)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `partita.load` and the hub understand, complete or not at all."""
        format.write(Path(folder), self.contents(), self.card())

    def _save_pretrained(self, save_directory: Path) -> None:
        format.write_into(save_directory, self.contents(), self.card())

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        device: str = "auto",
        **unknown: Any,
    ) -> TextModel:
        """As `partita.load`, with the hub's usual options.

        The mixin's own method would read `config.json` before anything is checked.
        """
        for name in unknown:
            raise InputError(name, "unknown option", "partita knows device beside the hub's own")
        chosen = choose_device(device)
        folder = find(
            pretrained_model_name_or_path,
            revision,
            force_download=force_download,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        return _assembled(folder, chosen)


def load(
    path_or_hub_id: str | Path, *, device: str = "auto", revision: str | None = None
) -> TextModel:
    """A model from a run folder (its best checkpoint), a checkpoint, an exported folder or the hub.

    Every file is checked first; nothing in them is ever run.
    """
    chosen = choose_device(device)
    return _assembled(find(path_or_hub_id, revision), chosen)


def _assembled(folder: Path, device: torch.device) -> TextModel:
    parts = read(folder)
    return TextModel(parts.method.to(device), parts.tokenizer, parts.recipe, parts.provenance)
