"""Data that all have the length of a row, such as images: written as shards, read as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from partita.data.any_tokenizer import AnyTokenizer
from partita.data.batches import ROWS, Rows
from partita.data.prepared import TOKENIZER, TOKENIZER_TENSORS
from partita.data.shards import ShardWriter, TokenSource
from partita.errors import require


def write_rows(
    folder: Path,
    tokenizer: AnyTokenizer,
    rows: Iterable[tuple[NDArray[Any], str | None]],
    *,
    classes: list[str],
    valid: float,
    facts: dict[str, Any],
) -> None:
    """Rows and the names of their classes as prepared tokens, in a folder that `tokens_in` keeps.

    A share of the rows, evenly spread, is set aside for validation; `facts` say where they are
    from.
    """
    with (
        ShardWriter(folder / "train", tokenizer.vocab_size, facts) as train,
        ShardWriter(folder / "valid", tokenizer.vocab_size, facts) as held_out,
    ):
        for row, label in rows:
            behind = held_out.tokens < valid * (train.tokens + held_out.tokens)
            writer = held_out if behind else train
            writer.write(row)
            writer.end_document(label)
        train.classes = held_out.classes = classes
    (folder / TOKENIZER).write_text(json.dumps(tokenizer.describe()))
    if tensors := tokenizer.tensors():
        save_file(tensors, folder / TOKENIZER_TENSORS)


@ROWS.register("whole")
@dataclass(frozen=True)
class Whole(Rows):
    """Documents that all have the length of a row, as images have."""

    source: TokenSource
    length: int
    document_attention: bool = False

    def __post_init__(self) -> None:
        total, count = len(self.source), len(self)
        each = total // max(count, 1)
        problem = f"is {self.length}, but an image has {each} tokens"
        remedy = f"give --network.length {each}"
        require(total == count * self.length, "network.length", problem, remedy)

    def __len__(self) -> int:
        return len(self.source.ends)

    def spans(self, index: Tensor, epoch: Tensor, seed: int) -> list[tuple[int, int]]:  # noqa: ARG002 - they are not cut
        return [(start, self.length) for start in (index * self.length).tolist()]

    def read(self, spans: list[tuple[int, int]]) -> tuple[Int64[Tensor, "N L"], None, None]:
        rows = [self.source.read(start, start + size) for start, size in spans]
        return torch.stack(rows), None, None
