"""A third modality: sequences of numbers from an .npy file, each number as one of some levels.

python series.py train waves.npy --tokenizer.name levels --network.length 16
python series.py sample runs/waves-mdlm --count 4 --out drawn.npy
python series.py infill runs/waves-mdlm gaps.npy --out filled.npy    (what is missing is a NaN)
python series.py eval runs/waves-mdlm waves.npy
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor

from partita.commands import main
from partita.contracts.prompt import Prompt
from partita.data.any_tokenizer import TOKENIZERS, AnyTokenizer
from partita.data.kinds import DataKind, DataSettings, TokenizerSettings
from partita.data.prepared import PrepareCallback, Prepared, tokens_in
from partita.data.whole_rows import write_rows
from partita.errors import InputError, require
from partita.files.atomic import check_file, whole_file
from partita.files.reading import content_hash, reading, refuse_changes, stamps
from partita.likelihood.bounds import nelbo
from partita.modalities import MODALITIES, Modality
from partita.modalities.base import Drawn, Evaluation, Infilling, OwnOptions, Sampling, Work
from partita.models.trained import TrainedModel

LEVELS = 32  # unless a recipe says how many
Series = Float[Tensor, "N L"]


def read_series(path: str, argument: str = "data.path") -> NDArray[np.float64]:
    """The sequences of a file, one in each row."""
    require(Path(path).is_file(), argument, f"{path} is no file", "name an .npy file")
    with reading(Path(path), argument):
        try:
            found = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise InputError(argument, f"{path} is no .npy file of numbers: {error}") from error
    fits = found.ndim == 2 and found.size > 0 and found.dtype.kind in "fiu"
    require(
        fits, argument, f"{path} holds {found.dtype} {list(found.shape)}", "save rows of numbers"
    )
    return found.astype(np.float64)


@TOKENIZERS.register("levels")
class LevelTokenizer(AnyTokenizer):
    """One token for a number: which of the equal parts of [low, high] it lies in."""

    data = "series"

    def __init__(self, levels: int, low: float, high: float, length: int) -> None:
        self.levels, self.low, self.high, self.length = levels, low, high, length

    @property
    def vocab_size(self) -> int:
        return self.levels

    def encode(self, values: Series) -> Int64[Tensor, "N L"]:
        """Numbers to levels; those outside have the nearest."""
        share = (values - self.low) / (self.high - self.low)
        return (share * self.levels).floor().clamp(0, self.levels - 1).long()

    def decode(self, tokens: Int64[Tensor, "N L"]) -> Series:
        """Levels to the middle of what they stand for."""
        return self.low + (tokens.float() + 0.5) * (self.high - self.low) / self.levels

    def describe(self) -> dict[str, Any]:
        return {"kind": "levels", **vars(self)}

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LevelTokenizer:
        kinds = {"levels": int, "low": float, "high": float, "length": int}
        fits = {key: type(value) for key, value in description.items()} == kinds and not tensors
        require(fits, "tokenizer", "is none of levels")
        return LevelTokenizer(**description)


class SeriesData(DataKind):
    """Files of sequences that all have one length."""

    name, each, unit, rows = "series", "sequence", "sequences", "whole"

    def claims(self, tokenizer: str) -> bool:
        return tokenizer == "levels"

    def remedy(self, path: str) -> str | None:
        return "give levels" if path.endswith(".npy") else None

    def check(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:  # noqa: ARG002
        require(Path(data.path).is_file(), "data.path", f"{data.path} is no file", "name one")

    def check_options(self, data: DataSettings, tokenizer: TokenizerSettings) -> None:  # noqa: ARG002
        require(data.label is None, "data.label", "series have no classes", "leave it out")

    def prepare(
        self,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        given: AnyTokenizer | None = None,
        callback: PrepareCallback | None = None,
    ) -> Prepared:
        callback, path = callback or PrepareCallback(), Path(data.path)
        before = stamps([path])
        values = torch.from_numpy(read_series(data.path)).float()
        made = given or LevelTokenizer(
            tokenizer.levels or LEVELS,
            float(values.min()),
            float(values.max()),
            values.shape[1],
        )
        assert isinstance(made, LevelTokenizer)
        facts = json.dumps([made.describe(), data.validation_fraction]).encode()
        identity = hashlib.sha256(content_hash(path) + facts).hexdigest()[:20]
        callback.on_name(identity)

        def rows() -> Iterator[tuple[NDArray[Any], None]]:
            for number, row in enumerate(made.encode(values), 1):
                yield row.numpy(), None
                callback.on_prepare(number)

        def make(partial: Path) -> None:
            facts = {"path": data.path, "valid": data.validation_fraction}
            write_rows(
                partial, made, rows(), classes=[], valid=data.validation_fraction, facts=facts
            )
            refuse_changes(before, [path])

        return tokens_in(Path(data.cache) / identity, make, callback)

    def check_network(self, tokenizer: AnyTokenizer, length: int, grid: int) -> None:  # noqa: ARG002
        assert isinstance(tokenizer, LevelTokenizer)
        problem = f"is {length}, but a sequence has {tokenizer.length} numbers"
        remedy = f"give --network.length {tokenizer.length}"
        require(length == tokenizer.length, "network.length", problem, remedy)


class SeriesModel(TrainedModel):
    """A model of sequences: numbers out."""

    tokenizer: LevelTokenizer
    data = "series"
    instead = "sample, infill and eval know series"

    def sample(self, count: int = 1, **options: Any) -> Series:
        chosen = self.drawing(options)
        return self.tokenizer.decode(self.drawn(count, length=self.length, **chosen).cpu())

    def infill(self, values: Series, **options: Any) -> Series:
        """Sequences whose NaNs are filled in."""
        known = ~values.isnan()
        tokens = self.tokenizer.encode(values.nan_to_num(self.tokenizer.low))
        prompt = Prompt(tokens, known).to(self.device)
        drawn = self.tokenizer.decode(self.drawn(prompt=prompt, **self.drawing(options)).cpu())
        return values.where(known, drawn)

    def preview(self, count: int) -> list[str]:
        return [" ".join(f"{value:.2f}" for value in row) for row in self.sample(count).tolist()]


@dataclass(frozen=True, kw_only=True)
class OutOptions(OwnOptions):
    """Where numbers are written to."""

    out: str | None = None
    """Series: the .npy file to write."""

    def __post_init__(self) -> None:
        if self.out is not None:
            check_file(Path(self.out), "--out", ".npy")


@dataclass(frozen=True, kw_only=True)
class SeriesEvaluation(OwnOptions):
    """Options of `eval`."""

    moments: int = 2
    """Series: how many moments of samples and data are compared."""


class SeriesModality(Modality[SeriesModel]):
    """Sequences of numbers that are drawn, filled in and measured."""

    data, model = SeriesData(), SeriesModel
    try_flags = "--out drawn.npy"
    sample_options, infill_options, eval_options = OutOptions, OutOptions, SeriesEvaluation

    def sample(self, model: SeriesModel, asked: Sampling, own: OutOptions) -> Drawn:
        drawn = model.sample(asked.count, label=model.label_number(asked.label), **asked.how)
        return _written(drawn, own.out or "drawn.npy")

    def infill(self, model: SeriesModel, asked: Infilling, own: OutOptions) -> Drawn:
        values = torch.from_numpy(read_series(asked.given, "text")).float()
        filled = model.infill(values.repeat_interleave(asked.count, 0), **asked.how)
        return _written(filled, own.out or "filled.npy")

    def evaluation(self, model: SeriesModel, asked: Evaluation, own: SeriesEvaluation) -> Work:
        path = asked.file
        values = None if path is None else torch.from_numpy(read_series(path, "file")).float()

        def work(bar: Progress) -> dict[str, Any]:
            results: dict[str, Any] = {}
            task = bar.add_task("samples", total=2)
            if asked.samples:
                drawn = model.sample(asked.samples, seed=asked.seed, **asked.how)
                powers = range(1, own.moments + 1)
                results["samples"] = {str(power): float((drawn**power).mean()) for power in powers}
            bar.advance(task)
            if values is not None:
                tokens = model.tokenizer.encode(values[: asked.limit]).to(model.device)
                bound = nelbo(model.method, tokens, replicates=asked.replicates, seed=asked.seed)
                results["likelihood"] = {"bits": bound.bits, "bits_error": bound.bits_error}
            return results

        return work


def _written(values: Series, place: str) -> Drawn:
    with whole_file(Path(place)) as partial, partial.open("wb") as file:
        np.save(file, values.numpy())
    facts = {"out": place, "sequences": len(values)}
    return Drawn(facts, lines=[f"{place}: {len(values)} sequences"])


MODALITIES.register("series")(SeriesModality())

if __name__ == "__main__":
    sys.exit(main())
