"""Put a trained model into the package, as the one that every installation comes with.

    python benchmarks/ship.py runs/wikipedia-pgm
    python benchmarks/report.py

The weights are rounded to bfloat16, and the recipe is told how texts are written unless somebody
asks otherwise. Its card, README.md, is made of measurements: `report.py` writes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from partita.config.sampling import SamplingOptions
from partita.models.default import WEIGHTS
from partita.models.text_model import TextModel

MOST = 25_000_000  # bytes of the whole folder: more would burden every clone
SAMPLING = SamplingOptions(sampler="ordered", temperature=0.8, options={"order": "strided"})
"""How it writes: one token after the other from left to right, which a judge finds far better than
random order, and cooler than it has learned to, with less variety and fewer slips. In fewer steps
it still draws no neighbours together."""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run folder or a model")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where it goes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """In place of the model that was there."""
    chosen = parsed(words)
    model = TextModel.from_pretrained(chosen.model, device="cpu")
    model.method.to(torch.bfloat16)
    model.recipe = dataclasses.replace(model.recipe, sampling=SAMPLING)
    made = chosen.out.with_name(f"{chosen.out.name}.new")
    model.save(made)
    size = sum(file.stat().st_size for file in made.iterdir())
    if size > MOST:
        shutil.rmtree(made)
        raise SystemExit(f"{chosen.model}: {size:,} bytes, of {MOST:,} at most; ship a smaller one")
    if chosen.out.exists():
        shutil.rmtree(chosen.out)
    made.rename(chosen.out)
    print(f"Written: {chosen.out}, {size:,} bytes")


if __name__ == "__main__":
    main()
